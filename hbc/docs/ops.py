"""`docs/ops.md`: every op with its constraints, its quantised form, its limits by march, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator

from hbc.backend.bpu.march import MARCHES
from hbc.backend.bpu.rules import RULES
from hbc.catalogue import markdown
from hbc.frontend.onnx_catalogue import operators_of
from hbc.ir import ops
from hbc.ir.core import Op
from hbc.ir.define import OperandSpec
from hbc.ir.fixed_point import DERIVE
from hbc.ir.kinds import attr_kinds
from hbc.ir.printer import print_attr

from .quantised import ABOUT_FORMS, form_of
from .text import NOTICE, doc, linked, one_line

ABOUT_OPS = """\
An op class serves reals (f32) and integers (types with a scale) alike. `x?` is an operand that may be missing, `xs*`
takes all the rest; attributes stand with their default, or with their kind where they have none. (C1), (C2) … are what
the verifier asks for and quotes in its errors. A march may take an op within limits only: [marches](marches.md). How
the text looks: [the IR](ir.md).
"""
ABOUT_INSTRUCTIONS = """\
What a program is made of. Each instruction of the runtime is an op of the IR, too, under the name `bpu.*`, with the
same operands, attributes and checks. Activations of spatial instructions are NHWC. The opcode is the number in the
[`.hbm` file](hbm-format.md). `scheme` says how an accumulator becomes an output ([numerics](numerics.md#requantize));
results are then limited to `clamp_min` … `clamp_max`.
"""

FAMILIES = {
    "conv": "Convolutions and matrix products",
    "eltwise": "Elementwise",
    "unary": "Functions of one variable",
    "pool": "Pools and reductions",
    "norm": "Softmax and normalisations",
    "sample": "Sampling",
    "select": "Comparisons, choices, positions",
    "move": "Moves",
    "quant": "Constants and quantisation",
    "misc": "Batch norm, tables, calls",
}  # modules of hbc.ir.ops
RESULTS: dict[type[Op], str] = {
    ops.Conv2d: "[N,O,OH,OW], OH = (H + pads − dilated kernel) / stride + 1, rounded down; OW likewise",
    ops.ConvTranspose2d: "[N,O,OH,OW], OH = (H − 1)·stride + dilated kernel − pads + output_padding; OW likewise",
    ops.Linear: "[…,N]",
    ops.Matmul: "the batch axes broadcast, then [M,N]",
    ops.BatchNorm: "the shape of `x`",
    ops.Concat: "the sum of the sizes along `axis`",
    ops.Call: "any number, of the node's own types",
    ops.CallGraph: "any number, of the graph's own types; sizes may be known after a run only",
    ops.Dequantize: "f32, the shape of `x`",
    ops.Quantize: "integers, the shape of `x`",
}  # where the first line of the docstring doesn't say it
IN_A_TABLE = (
    "[a table](passes.md#lower-to-lut) where it is a function of one tensor and scalar constants, "
    "[a product](passes.md#lower-to-mul) where it can be one, else the CPU"
)
IN_PARTS = "[several instructions](passes.md#decompose), where its bound allows; else the CPU"


def ops_page() -> str:
    """Every op: what it computes, its constraints, operands and attributes, and how it runs on the BPU."""
    parts = [
        "# Ops\n",
        NOTICE.format("the op table (`hbc/ir/ops`) and the instruction set (`runtime/isa`)"),
        ABOUT_OPS,
        linked(ABOUT_FORMS),
    ]
    for module, title in FAMILIES.items():
        parts += [f"## {title}\n", linked(doc(getattr(ops, module)))]
        members = [cls for cls in ops.TABLE.values() if cls.__module__ == f"hbc.ir.ops.{module}"]
        parts += [_unary_table(members)] if module == "unary" else map(_op_section, members)
    parts += ["## Instructions\n", ABOUT_INSTRUCTIONS]
    parts += [_instruction_section(cls) for _, cls in sorted((i.opcode, c) for i, c in ops.BPU_OPS.items())]
    return "\n".join(parts)


def _op_section(cls: type[Op]) -> str:
    lines = [*_signature(cls), f"- on the BPU: {_on_the_bpu(cls)}", *_form(cls), *_limits(cls), *_from_onnx(cls)]
    return f"### {cls.NAME}\n\n{linked(_with_constraints(cls))}\n" + "\n".join(lines) + "\n"


def _form(cls: type[Op]) -> Iterator[str]:
    form = form_of(cls)
    if form is not None:
        yield linked(f"- quantised: takes {form.takes}; gives {form.gives}; rounding: {form.rounds}")
        yield f"- apart from ONNX Runtime (onnx, bpu): {form.apart}"


def _limits(cls: type[Op]) -> Iterator[str]:
    """What marches ask of the op, the marches that say the same side by side."""
    said: dict[str, list[str]] = {}
    for rule in (r for r in RULES if issubclass(cls, r.classes)):
        for march in filter(rule.where, MARCHES.values()):
            said.setdefault(one_line(rule.text(march)).replace(f" on {march.name} are", " are").rstrip("."), []).append(
                march.name
            )
    for text, marches in said.items():
        yield f"- limit ({'every march' if len(marches) == len(MARCHES) else ', '.join(marches)}): {text}"


def _from_onnx(cls: type[Op]) -> Iterator[str]:
    names = operators_of(cls)
    if names:
        yield f"- from ONNX: {', '.join(names)} ([all operators](onnx-operators.md))"


def _instruction_section(cls: type[ops.BpuOp]) -> str:
    opcode = cls.INSTRUCTION.opcode
    lines = "\n".join(_signature(cls))
    return f"### {cls.NAME}\n\nOpcode {int(opcode)}.\n\n{linked(doc(cls))}\n{lines}\n"


def _unary_table(members: list[type[Op]]) -> str:
    """The functions of one variable, which differ by their formula only."""
    form = "".join(f"{line}\n" for line in (*_form(ops.Unary), *_limits(ops.Unary)))
    rows = (
        (f"`{c.NAME}`", linked(one_line(doc(c))), _attributes(c) or "–", ", ".join(operators_of(c)) or "–")
        for c in members
    )
    return f"{form}\n{markdown(('op', 'f(x)', 'attributes', 'from ONNX'), rows)}"


def _with_constraints(cls: type[Op]) -> str:
    """The class's docstring, and the constraints that it inherits where it states none."""
    text = doc(cls)
    inherited = [p for base in cls.__mro__[1:] for p in doc(base).split("\n\n") if p.startswith("(C1)")]
    return text if "(C1)" in text or not inherited else f"{text}\n{inherited[0].strip()}\n"


def _signature(cls: type[Op]) -> list[str]:
    operands = ", ".join(f"`{_operand(o)}`" for o in cls.OPERANDS)
    attributes = _attributes(cls)
    lines = [("operands", operands), ("attributes", attributes), ("result", RESULTS.get(cls, ""))]
    return [f"- {name}: {text}" for name, text in lines if text]


def _operand(spec: OperandSpec) -> str:
    return spec.name + ("*" if spec.variadic else "?" if spec.optional else "")


def _attributes(cls: type[Op]) -> str:
    kinds = attr_kinds(cls)
    texts = []
    for spec in cls.ATTRS:
        kind = kinds[spec.name]
        known = f"`{spec.name} = {print_attr(kind.conform(spec.default))}`" if not spec.required else ""
        texts.append(known or f"`{spec.name}` ({kind.text})")
    return ", ".join(texts)


def _on_the_bpu(cls: type[Op]) -> str:
    if cls in DERIVE:
        return linked(one_line(DERIVE[cls].__doc__ or ""))
    if issubclass(cls, ops.Binary):
        return IN_A_TABLE
    if issubclass(cls, ops.Composite):
        return IN_PARTS
    return "data of the program" if cls is ops.Const else "no; it runs on the CPU"
