"""The quantised form of each op in words: what integers it takes and gives, how it rounds, how far ONNX Runtime is."""

from __future__ import annotations

from dataclasses import dataclass

from hbc.ir import ops
from hbc.ir.core import Op

ABOUT_FORMS = """\
**The quantised form** of an op is the same op on integers. An *activation* is i8 or i16 with one scale and any zero
point (D1: carried exactly; a board wants 0); a *weight* is a constant i8 (i16 beside i8 activations) with one scale,
or one per output channel, and any zero point. u8 and u16 become i8 and i16 on the way in. **Apart** says how far an
op may be from ONNX Runtime's kernels on the same integers, its optimiser off, in quanta (steps of the result's
scale), for `--arith onnx` and `--arith bpu`; the differential tests ask for no more. Where it is 0, integers are only
moved or compared.
"""

ACTIVATION = "an activation"
FORM_A = "form A for i8 results, wide for i16 (NUMERICS 4, D4); accumulators by D3"
FORM_B = "form B for i8 results (NUMERICS 4, D12), wide for i16 (D4)"
EXACT = "nothing is rounded"
TIES = "a float sum on the other side of a tie"


@dataclass(frozen=True)
class Form:
    """What the quantised form takes, gives, and rounds by; `apart` are quanta for onnx and for bpu, and why."""

    takes: str
    gives: str
    rounds: str
    apart: str


SAME = Form(ACTIVATION, "the operand's dtype, scale and zero point", EXACT, "0, 0")
MOVED = Form("integers of any kind", "the same integers, scale and zero point", EXACT, "0, 0")
BY_TABLE = Form(
    "one activation and constants of one value",
    "an activation",
    "i8: a table of all 256 inputs (D7); i16: up to 64 segments, interpolated (D8)",
    "0 (float32 steps), 1 for i8; for i16 the CPU, and at most 256",
)
LIKE_ONE = Form("activations of one dtype, scale and zero point", "the same, or truth values", EXACT, "0, 0")
SUM = Form(ACTIVATION, "an activation of any scale", FORM_B, f"1, 1 ({TIES})")
PARTS = Form(
    "an activation; scale and bias are constants",
    "an activation",
    "its parts, with i16 between them (D9)",
    "0 or 1 (computed in reals on the CPU), 2 for i8 and 256 for i16, else it stays on the CPU",
)
PRODUCT = Form(
    "x an activation, a weight, a bias (f32 or i32 in accumulator steps), addend an activation",
    "an activation of any scale, or the i32 accumulator with a scale per channel (NUMERICS 6)",
    f"{FORM_A}; an addend by D5",
    f"0 for QLinearConv and 1 for QDQ ({TIES}), 1",
)
ADDITION = Form(
    "activations of any scales; constants of reals become i16",
    "an activation of any scale",
    "one shift for both, half up once (D6)",
    "1 (ties of contrib kernels), 1",
)
ONE_SCALE = Form(
    "activations of the result's scale; others get a requantize (D12)",
    "an activation",
    EXACT,
    "0; 1 where one is requantised",
)
FORMS: dict[type[Op], Form] = {
    ops.Conv2d: PRODUCT,
    ops.ConvTranspose2d: PRODUCT,
    ops.Linear: PRODUCT,
    ops.Matmul: Form(
        "two activations, one of them i8", "an activation, or the i32 accumulator", FORM_B, f"1 ({TIES}), 1"
    ),
    ops.Add: ADDITION,
    ops.Sub: ADDITION,
    ops.Mul: Form(
        "activations of any scales; constants of reals become i16", "an activation of any scale", FORM_B, "1, 1"
    ),
    ops.Div: Form(
        "activations of any scales, the divisor never 0",
        "an activation",
        "a product with i16 reciprocals (NUMERICS 5), or a table",
        "the CPU, at most 2 for i8 and 256 for i16",
    ),
    ops.Pow: BY_TABLE,
    ops.Maximum: ONE_SCALE,
    ops.Minimum: ONE_SCALE,
    ops.BatchNorm: Form(
        "an activation; multiplier and offset are constants",
        "an activation",
        f"a depthwise 1x1 convolution: {FORM_A}",
        f"1 ({TIES}), 1",
    ),
    ops.Lut: SAME,
    ops.SegmentLut: SAME,
    ops.Clip: SAME,
    ops.Unary: BY_TABLE,
    ops.Composite: PARTS,
    ops.MaxPool: SAME,
    ops.AvgPool: Form(ACTIVATION, "an activation of any scale", "form B (D13), wide for i16", f"1 ({TIES}), 1"),
    ops.Reduce: SUM,
    ops.ReduceMax: SAME,
    ops.ReduceMin: SAME,
    ops.ArgExtremum: Form(ACTIVATION, "positions, i32 or i64", EXACT, "0, 0"),
    ops.ResizeLinear: Form("an i8 activation", "its scale", "weights of 8 bits, one rounding (D10)", "the CPU, 1"),
    ops.GridSample: Form(
        "an activation and a grid of one scale",
        "the operand's scale",
        "positions by D11, weights of 8 bits",
        "the CPU, by its position",
    ),
    ops.Comparison: LIKE_ONE,
    ops.Where: LIKE_ONE,
    ops.Logical: Form("truth values", "truth values", EXACT, "0, 0"),
    ops.LogicalNot: Form("truth values", "truth values", EXACT, "0, 0"),
    ops.Concat: ONE_SCALE,
    ops.Pad: Form("an activation", "its scale; the border is a real number in it", EXACT, "0, 0"),
    ops.Reshape: MOVED,
    ops.Transpose: MOVED,
    ops.Slice: MOVED,
    ops.Expand: MOVED,
    ops.Gather: MOVED,
    ops.ResizeNearest: MOVED,
    ops.Reinterpret: MOVED,
    ops.FlipSign: MOVED,
    ops.Quantize: Form(
        "f32",
        "integers of any dtype and scale",
        "by the march (NUMERICS 2, D2); half to even for onnx",
        "0, 0 on nash; ties part on the others",
    ),
    ops.Dequantize: Form("integers of any dtype and scale", "f32", "one float32 product (NUMERICS 2)", "0, 0"),
    ops.Requantize: Form(ACTIVATION, "an activation of another scale", FORM_B, "0, 1 at ties"),
}


def form_of(cls: type[Op]) -> Form | None:
    """The quantised form of a class, or of the base that states it; None for an op that has none."""
    return next((FORMS[base] for base in cls.__mro__ if base in FORMS), None)
