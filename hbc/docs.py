"""The generated pages of `docs/`: the tables that the compiler runs on, as Markdown. `scripts/docs` writes them."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

from hbc.backend.bpu import march as march_module
from hbc.backend.bpu.march import MARCHES, MarchSpec
from hbc.backend.bpu.pipelines import PIPELINES
from hbc.backend.bpu.rules import RULES
from hbc.catalogue import markdown, onnx_operators
from hbc.diagnostics import catalogue
from hbc.ir import ops
from hbc.ir.core import Op
from hbc.ir.define import OperandSpec
from hbc.ir.fixed_point import DERIVE
from hbc.ir.kinds import attr_kinds
from hbc.ir.printer import print_attr
from hbc.ir.semantics import Semantics
from hbc.options import MARCH_ALIASES
from hbc.passes.base import Pass
from hbc.passes.manager import Stage
from hbc.passes.pipeline_text import print_value
from hbc.passes.registry import PASSES
from hbc_runtime.isa import Rounding
from hbc_runtime.types import DType

NOTICE = "*Written by `scripts/docs` from {}. Change it there; a test compares.*\n"

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
ABOUT_ONNX = """\
These have an import rule. A node of any other operator becomes a `call` and runs in ONNX Runtime, if that has it and
the sizes of its results are known.
"""
ABOUT_PASSES = """\
A pass changes the [IR](ir.md) in place; the verifier runs after every one. `hbc opt -p NAME,NAME` runs single passes,
`hbc opt --stage NAME` a stage. A pass that doesn't change numbers is held to it: the golden tests run the module before
and after. [Architecture](architecture.md#the-pipeline) says why the stages stand in this order,
[writing a pass](writing-a-pass.md) how to add one.
"""
ABOUT_ARITHMETIC = """\
What a march means for integers under `--arith bpu`. [Numerics](numerics.md) has the rest, which all marches share.
"""
ABOUT_LIMITS = """\
An op within these limits runs on the BPU if its operands and its result are quantised. Any other runs on the CPU, and
`hbc compile --explain` shows which rule said so. `hbc ops --march NAME` lists the same by op.
"""

# Docstrings cite sections of the numerics by number; docs/numerics.md has them under these headings.
SECTIONS = {
    "1": "#reals-and-integers",
    "2": "#the-border-quantize-and-dequantize",
    "3": "#accumulators-and-biases",
    "4": "#requantize",
    "5": "#elementwise",
    "6": "#high-precision-outputs",
    "7": "#look-up-tables",
}


def write_pages(folder: Path) -> list[Path]:
    """Write every generated page into `folder`; returns those that changed. OSError where one can't be written."""
    changed = []
    for name, page in PAGES.items():
        path, text = folder / name, page()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            changed.append(path)
    return changed


# ---- docs/ops.md

FAMILIES = {
    "conv": "Convolutions and matrix products",
    "eltwise": "Elementwise",
    "unary": "Functions of one variable",
    "pool": "Pools and reductions",
    "move": "Moves",
    "quant": "Constants and quantisation",
    "misc": "Batch norm, tables, calls",
}  # modules of hbc.ir.ops
IN_A_TABLE = "[a table](passes.md#lower-to-lut) where it is a function of one tensor and scalar constants, else the CPU"


def ops_page() -> str:
    """Every op: what it computes, its constraints, operands and attributes, and how it runs on the BPU."""
    parts = [
        "# Ops\n",
        NOTICE.format("the op table (`hbc/ir/ops`) and the instruction set (`runtime/isa`)"),
        ABOUT_OPS,
    ]
    for module, title in FAMILIES.items():
        parts += [f"## {title}\n", _linked(_doc(getattr(ops, module)))]
        members = [cls for cls in ops.TABLE.values() if cls.__module__ == f"hbc.ir.ops.{module}"]
        parts += [_unary_table(members)] if module == "unary" else map(_op_section, members)
    parts += ["## Instructions\n", ABOUT_INSTRUCTIONS]
    parts += [_instruction_section(cls) for _, cls in sorted((i.opcode, c) for i, c in ops.BPU_OPS.items())]
    parts += ["## ONNX operators\n", ABOUT_ONNX]
    rows = ((domain or "ai.onnx", ", ".join(names)) for domain, names in onnx_operators().items())
    parts.append(markdown(("domain", "operators"), rows))
    return "\n".join(parts)


def _op_section(cls: type[Op]) -> str:
    return f"### {cls.NAME}\n\n{_linked(_with_constraints(cls))}\n{_signature(cls)}- on the BPU: {_on_the_bpu(cls)}\n"


def _instruction_section(cls: type[ops.BpuOp]) -> str:
    opcode = cls.INSTRUCTION.opcode
    return f"### {cls.NAME}\n\nOpcode {int(opcode)}.\n\n{_linked(_doc(cls))}\n{_signature(cls)}"


def _unary_table(members: list[type[Op]]) -> str:
    rows = ((f"`{c.NAME}`", _linked(_one_line(_doc(c))), _attributes(c) or "–") for c in members)
    return markdown(("op", "f(x)", "attributes"), rows)


def _with_constraints(cls: type[Op]) -> str:
    """The class's docstring, and the constraints that it inherits where it states none."""
    text = _doc(cls)
    inherited = [p for base in cls.__mro__[1:] for p in _doc(base).split("\n\n") if p.startswith("(C1)")]
    return text if "(C1)" in text or not inherited else f"{text}\n{inherited[0].strip()}\n"


def _signature(cls: type[Op]) -> str:
    operands = ", ".join(f"`{_operand(o)}`" for o in cls.OPERANDS)
    attributes = _attributes(cls)
    return (f"- operands: {operands}\n" if operands else "") + (f"- attributes: {attributes}\n" if attributes else "")


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
        return _linked(_one_line(DERIVE[cls].__doc__ or ""))
    if issubclass(cls, ops.Binary):
        return IN_A_TABLE
    return "data of the program" if cls is ops.Const else "no; it runs on the CPU"


# ---- docs/passes.md


def passes_page() -> str:
    """The stages in order, then every pass: picture, options, whether numbers change, where it stands."""
    parts = [
        "# Passes\n",
        NOTICE.format("`hbc/backend/bpu/pipelines.py` and the passes' docstrings"),
        ABOUT_PASSES,
        "## The pipeline\n",
    ]
    for pipeline in dict.fromkeys(PIPELINES.values()):
        marches = [m for m, p in PIPELINES.items() if p == pipeline]
        parts.append(f"For {', '.join(marches)}:\n")
        rows = ((f"**{s.name}**", " · ".join(_pass_link(p) for p in s.passes), _promise(s)) for s in pipeline)
        parts.append(markdown(("stage", "passes", "promises"), rows))
    parts += ["## The passes\n", *(_pass_section(name, cls) for name, cls in PASSES.items())]
    return "\n".join(parts)


def _pass_link(p: Pass) -> str:
    options = [f for f in dataclasses.fields(p) if getattr(p, f.name) != f.default]
    given = " ".join(f"{f.name.replace('_', '-')}={print_value(getattr(p, f.name))}" for f in options)
    return f"[{p.name}](#{p.name})" + (f" `{{{given}}}`" if given else "")


def _promise(stage: Stage) -> str:
    promises = [f"no `{name}`" for name in sorted(cls.NAME or cls.__name__ for cls in stage.forbids)]
    if stage.ensures is not None:
        promises.append(f"[`{stage.ensures.__name__}`]({_source(stage.ensures.__module__)})")
    return ", ".join(promises) or "–"


def _pass_section(name: str, cls: type[Pass]) -> str:
    stages = [s.name for pipeline in PIPELINES.values() for s in pipeline if any(type(p) is cls for p in s.passes)]
    source, options = _source(cls.__module__), ", ".join(map(_option, dataclasses.fields(cls)))
    return (
        f"### {name}\n\n{_linked(_doc(cls))}\n"
        f"- stages: {', '.join(dict.fromkeys(stages)) or 'none; for `hbc opt`'}\n"
        f"- changes numbers: {'yes' if cls.changes_numerics else 'no'}\n"
        + (f"- options: {options}\n" if options else "")
        + f"- source: [{source.rpartition('/')[2]}]({source})\n"
    )


def _option(field: dataclasses.Field[object]) -> str:
    return f"`{field.name.replace('_', '-')} = {print_value(field.default)}`"


def _source(module: str) -> str:
    return f"../{module.replace('.', '/')}.py"


# ---- docs/marches.md

ROUNDINGS = {
    Rounding.HALF_EVEN_F32: "divide in float32, half to even",
    Rounding.HALF_AWAY_F64: "divide in float64, half away from zero",
}
_FIELD = re.compile(r"^    (\w+): [^#\n]*(?:# (.*))?$", re.MULTILINE)


def marches_page() -> str:
    """The marches' numbers with their sources, what each means for arithmetic, and the legality rules of each."""
    aliases = ", ".join(f"`{alias}` means `{name}`" for alias, name in MARCH_ALIASES.items())
    parts = [
        "# Marches\n",
        NOTICE.format("`hbc/backend/bpu/march.py` and `hbc/backend/bpu/rules`"),
        f"A march is one generation of the BPU; `--march` picks it, and {aliases}.\n",
        _doc(march_module),
        "## Numbers\n",
        "*Asked by* names the rules below that look at a number; the others are for information.\n",
        markdown(("", *MARCHES, "source", "asked by"), _march_rows()),
        "## Arithmetic\n",
        ABOUT_ARITHMETIC,
        markdown(("march", "Quantize rounds", "a bias is stored as"), _semantics_rows()),
        "## What each march takes\n",
        ABOUT_LIMITS,
    ]
    for march in MARCHES.values():
        rows = ((rule.name, _one_line(rule.text(march))) for rule in RULES)
        parts += [f"### {march.name}\n", f"{march.boards}.\n", markdown(("rule", "says"), rows)]
    return "\n".join(parts)


def _march_rows() -> Iterator[tuple[str, ...]]:
    comments = dict(_FIELD.findall(inspect.getsource(MarchSpec)))
    asked: dict[str, list[str]] = {}
    for rule in RULES:
        for name in sorted(set(re.findall(r"\bmarch\.(\w+)", inspect.getsource(rule.predicate)))):
            asked.setdefault(name, []).append(rule.name)
    for field in dataclasses.fields(MarchSpec):
        if field.name != "name":
            values = [_shown(getattr(m, field.name)) for m in MARCHES.values()]
            yield field.name, *values, comments[field.name], ", ".join(asked.get(field.name, ()))


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(d.text for d in value if isinstance(d, DType))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _semantics_rows() -> Iterator[tuple[str, ...]]:
    for march in MARCHES:
        sem = Semantics(march)
        yield march, ROUNDINGS[sem.rounding], "i16 with a left shift" if sem.bias_is_16_bit else "i32"


# ---- text

PICTURE = ("%", "graph(")  # how the text of the IR begins


def _doc(thing: object) -> str:
    """A docstring, a line per paragraph; pictures are indented, also those that `cleandoc` dedents for ending it."""
    paragraphs = inspect.cleandoc(getattr(thing, "__doc__", None) or "").split("\n\n")
    return "\n\n".join(p if p.startswith("    ") else _paragraph(p) for p in paragraphs) + "\n"


def _paragraph(text: str) -> str:
    return textwrap.indent(text, "    ") if text.startswith(PICTURE) else _one_line(text)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _linked(text: str) -> str:
    """`text` with links in place of citations of the numerics; pictures (indented lines) stay as they are."""
    lines = text.splitlines(keepends=True)
    return "".join(line if line.startswith("    ") else _cite(line) for line in lines)


def _cite(line: str) -> str:
    line = re.sub(r"NUMERICS (?=D\d)", "", line)
    line = re.sub(r"NUMERICS (\d+)", lambda m: f"[numerics](numerics.md{SECTIONS.get(m[1], '')})", line)
    return re.sub(r"\bD(\d+)\b", r"[D\1](numerics.md#decisions)", line)


PAGES: dict[str, Callable[[], str]] = {
    "ops.md": ops_page,
    "passes.md": passes_page,
    "marches.md": marches_page,
    "diagnostics.md": catalogue,
}
