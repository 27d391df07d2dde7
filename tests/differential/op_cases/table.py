"""All entries, how far each op may be from ONNX Runtime and why, and where it has to run on nash."""

from __future__ import annotations

from dataclasses import dataclass

from .choice import CHOICE
from .draw import Build, Kind
from .moves import MOVES
from .product import PRODUCT
from .rows import ROWS
from .scalar import FUNCTIONS, SCALAR
from .window import WINDOW

BUILD: dict[str, Build] = {**SCALAR, **PRODUCT, **WINDOW, **ROWS, **MOVES, **CHOICE}


@dataclass(frozen=True)
class Limit:
    """Quanta of a result: of 8 bits and of 16 in the BPU's arithmetic, and in ONNX's (16 bits may differ)."""

    bpu: int
    wide: int
    onnx: int
    why: str

    def of(self, kind: Kind, arith: str) -> int:
        """What holds for such a case."""
        if arith == "onnx":
            return self.onnx
        return self.wide if kind is Kind.WIDE else self.bpu


EXACT = Limit(0, 0, 0, "integers are moved, compared or counted, or ONNX Runtime's own kernel runs")
ROUNDED = Limit(1, 1, 1, "the exact result is rounded once, on both sides; half up and half to even part at ties")
TABLE = Limit(1, 257, 1, "entries are rounded half up; 16 bits interpolate, by a step of 8 bits at most (D8)")
PRODUCTS = Limit(1, 2, 1, "form A rounds by whole steps of the accumulator; ONNX Runtime's float sums miss ties")
INTEGER_PRODUCTS = Limit(1, 1, 0, "form A as above; under onnx integer sums and one float rounding, ONNX Runtime's own")
FACTORS = Limit(1, 2, 1, "rounded once; a constant in i16 moves a result of 16 bits by half a quantum more")
SUMS = Limit(1, 4, 1, "of 15-bit multipliers over one shift (D6), whose error 16 bits see")
SOFTMAX = Limit(2, 8, 0, "16 bits between the parts (D9): what decompose asks of its bound; reals are ONNX Runtime's")
LOG_SOFTMAX = Limit(2, 12, 0, "as softmax; 20 terms, each off by 1.5/32767, are 6 quanta of the finest logarithm drawn")
LINEAR = Limit(2, 1, 1, "weights of 8 bits shift by 255/512 quanta per axis (D10); reals are blended in another order")
NORM = Limit(2, 48, 0, "16 bits between the parts (D9); reals are ONNX Runtime's")
WRITTEN_NORM = Limit(2, 48, 1, "as other norms; under onnx other float32 operators than ONNX Runtime's")

LIMITS: dict[str, Limit] = {
    **dict.fromkeys(BUILD, EXACT),
    **dict.fromkeys(FUNCTIONS, TABLE),
    **dict.fromkeys(("Add", "Sub", "Constant", "ConstantOfShape"), SUMS),
    **dict.fromkeys(("Max", "Min", "BatchNormalization", "PRelu"), ROUNDED),
    **dict.fromkeys(("GlobalAveragePool", "AveragePool", "ReduceSum", "ReduceMean", "If", "QuantizeLinear"), ROUNDED),
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul"), PRODUCTS),
    **dict.fromkeys(("QLinearConv", "QLinearMatMul"), INTEGER_PRODUCTS),
    **dict.fromkeys(("LayerNormalization", "InstanceNormalization"), NORM),
    **dict.fromkeys(("RMSNormalization", "GroupNormalization"), WRITTEN_NORM),
    **dict.fromkeys(("Resize", "Upsample", "GridSample"), LINEAR),
    "Softmax": SOFTMAX, "LogSoftmax": LOG_SOFTMAX, "Mul": FACTORS, "Div": TABLE, "Pow": TABLE, "Clip": ROUNDED,
}  # fmt: skip

# Where an op runs on nash. What isn't named runs on the BPU, in both arithmetics.
ALL = frozenset((kind, arith) for kind in Kind for arith in ("bpu", "onnx"))
IN_REALS = frozenset((kind, "onnx") for kind in Kind)  # under onnx only
WIDE_IN_REALS = frozenset({(Kind.WIDE, "onnx")})  # 16-bit tables: interpolation is not what ONNX's operators do
CPU: dict[str, frozenset[tuple[Kind, str]]] = {
    **dict.fromkeys(FUNCTIONS, WIDE_IN_REALS),
    **dict.fromkeys(("Softmax", "LogSoftmax", "LayerNormalization", "RMSNormalization"), IN_REALS),
    **dict.fromkeys(("GroupNormalization", "InstanceNormalization"), IN_REALS),
    **dict.fromkeys(("Resize", "Upsample", "GridSample"), IN_REALS | {(Kind.WIDE, "bpu")}),
    **dict.fromkeys(("ReduceProd", "CumSum", "TopK", "NonMaxSuppression", "LSTM", "GRU"), ALL),
}
# Where the place depends on what is drawn: a dtype, one slope or several, a pole or a constant too coarse for 16 bits.
EITHER = frozenset(
    {
        *(
            (op, kind, arith)
            for op in ("Div", "Pow", "Cast", "CastLike", "DynamicQuantizeLinear")
            for kind, arith in ALL
        ),
        *((op, Kind.WIDE, "bpu") for op in ("Ceil", "Floor", "Round", "Tan")),
        *((op, Kind.WIDE, "onnx") for op in ("Add", "Sub", "Mul", "Constant", "ConstantOfShape")),
        ("Mul", Kind.WIDE, "bpu"),
        *((op, Kind.WIDE, "onnx") for op in ("PRelu", "Relu", "If", "Clip")),
    }
)

# Ops without 16-bit activations: their third test takes plain dtypes and unusual shapes.
NO_WIDE = frozenset(
    """
    QLinearConv QLinearMatMul ConvInteger MatMulInteger ReduceProd CumSum TopK NonMaxSuppression Cast CastLike LSTM GRU
    DynamicQuantizeLinear
    """.split()  # noqa: SIM905 - a list of words reads better
)
