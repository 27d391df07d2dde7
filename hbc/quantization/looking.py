"""What a compiled model looks like: which operations run where and why, how long they take, and a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import fx, nn

from hbc.diagnostics import HbcError, OptionError, error
from hbc.files import write_atomically
from hbc.ir.printer import print_module
from hbc.perf import Estimate, as_json, board_named, estimate, page
from hbc.report import NodeRow

from .capturing import OUTPUTS
from .converting import FixedPointModel, compile_model, export
from .eager import as_graph
from .states import require_prepared
from .units import QuantizedInput, QuantizedOperation, QuantizedUnit, QuantizedWeighted

PAGES = (".html", ".hbir", ".txt")


@dataclass(frozen=True)
class OpPlace:
    """One operation: its module, what it is, `bpu` or `cpu` (`host`: at the border, `folded`: nothing left to run).

    `reason` and `hint` say why it is on the CPU, and what to try.
    """

    module: str
    op: str
    device: str
    reason: str = ""
    hint: str = ""


@dataclass(frozen=True)
class ModelCheck:
    """Where every operation of a model runs. `hints`: what the template wished and couldn't be done.

    `failure`: the compiler's error, where the model doesn't compile at all. Printed, it is a table.
    """

    rows: tuple[OpPlace, ...]
    hints: tuple[str, ...] = ()
    failure: str = ""

    @property
    def on_cpu(self) -> tuple[OpPlace, ...]:
        """The operations that the BPU doesn't run."""
        return tuple(r for r in self.rows if r.device == "cpu")

    @property
    def is_whole(self) -> bool:
        """True where the model compiles and nothing of it runs on the CPU."""
        return not self.failure and not self.on_cpu

    def __str__(self) -> str:
        if self.failure:
            return self.failure
        table = [(r.module, r.op, r.device, r.reason + (f"; try: {r.hint}" if r.hint else "")) for r in self.rows]
        return "\n".join([*_aligned(table), *(f"hint: {h}" for h in self.hints)])


def check_model(model: nn.Module, example_inputs: Any, march: str | None = None) -> ModelCheck:
    """Where each operation of a prepared or converted model runs, and why not on the BPU.

    QuantizationError for a float model.
    """
    _require_model(model, "check_model")
    hints = tuple(getattr(model, "hints", ()))
    try:
        compiled = compile_model(model, example_inputs, march=march)
    except HbcError as err:
        return ModelCheck((), hints, str(err))
    own = {"Barrier", "Identity"}  # nodes of the emitted file that are no operations of the user's
    return ModelCheck(tuple(_place(n) for n in compiled.report.layers if n.op_type not in own), hints)


def _require_model(model: nn.Module, verb: str) -> None:
    if not isinstance(model, FixedPointModel):
        require_prepared(model, verb)


def _place(n: NodeRow) -> OpPlace:
    module, reason, hint = n.node.rpartition("/")[0] or n.node, n.reason if n.device == "cpu" else "", n.hint
    if "/barrier'" in reason:
        reason, hint = "it, or what it reads, is kept on the CPU: `cpu` of prepare, or wrap", ""
    elif hint.startswith("put QuantizeLinear"):  # advice for ONNX files
        reason, hint = "it reads reals, of the operation before it", ""
    return OpPlace(module, n.op_type, n.device, reason, hint)


def perf_model(
    model: nn.Module,
    example_inputs: Any,
    march: str | None = None,
    out_dir: str | Path | None = None,
    *,
    board: str | None = None,
) -> dict[str, Any]:
    """An estimate of the model's time on a board, by the vendor's names of figures (`FPS`, `latency (ms)` …).

    `board`: as `hbc perf --board`, by default the march's own. With `out_dir`, `NAME.json` and the page `NAME.html` are
    written there. The figures are estimates: docs/perf.md says how far off they are.
    """
    found, program = _estimated(model, example_inputs, march, board)
    data = dict(as_json(found))
    if out_dir is not None:
        folder = Path(out_dir)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / f"{found.model}.json", json.dumps(data, indent=1).encode())
        write_atomically(folder / f"{found.model}.html", page(found, program.models[0]).encode())
    return data


def _estimated(model: nn.Module, example: Any, march: str | None, board: str | None) -> tuple[Estimate, Any]:
    _require_model(model, "perf_model")
    program = compile_model(model, example, march=march).program
    return estimate(program, board_named(board, program.march)), program


def visualize_model(model: nn.Module, example_inputs: Any, save_path: str | Path | None = None) -> str:
    """The model's graph as text: each operation with what it reads, its integers and its scale.

    Of a converted model it is the program's IR.
    `save_path`: `.html` writes the page of `hbc perf` (the graph drawn, a time line, a table of layers), `.hbir` the
    IR, `.txt` the text.
    """
    _require_model(model, "visualize_model")
    fixed = model if isinstance(model, FixedPointModel) else None
    text = print_module(fixed.compiled.module) if fixed else _graph_text(as_graph(model, example_inputs))
    if save_path is None:
        return text
    path = Path(save_path)
    if path.suffix not in PAGES:
        raise error(OptionError, f"{path.name!r} is no picture that hbc draws", hint=f"end it in {', '.join(PAGES)}")
    if path.suffix == ".html":
        found, program = _estimated(model, example_inputs, None, None)
        data = page(found, program.models[0])
    else:
        data = print_module(export(model, example_inputs)) if path.suffix == ".hbir" else text
    write_atomically(path, data.encode())
    return text


def _graph_text(model: fx.GraphModule) -> str:
    """A line per operation in running order: name, what it is, its result, where its operands come from."""
    modules = dict(model.named_modules())
    rows = []
    for node in model.graph.nodes:
        unit = modules.get(str(node.target)) if node.op == "call_module" else None
        operands = ", ".join(_shown(n) for n in _operands(node))
        if isinstance(unit, QuantizedUnit):
            rows.append((str(node.target), _kind(unit), _result(unit), f"← {operands}"))
        elif node.op in {"call_function", "call_method", "call_module"} and node.target != OUTPUTS:
            rows.append((_shown(node), "real" if node.meta.get("cpu") else "moves", "", f"← {operands}"))
    return "\n".join(_aligned(rows))


def _operands(node: fx.Node) -> list[fx.Node]:
    """The operands in order, each as often as it is read."""
    found: list[fx.Node] = []
    fx.node.map_arg((node.args, node.kwargs), found.append)
    return found


def _shown(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_module" else node.name


def _kind(unit: QuantizedUnit) -> str:
    if isinstance(unit, QuantizedWeighted):
        parts = [unit.kind.__name__, *(["add"] if unit.has_addend else []), *filter(None, [unit.activation])]
        return " + ".join(parts)
    if isinstance(unit, QuantizedOperation):
        return unit.operation
    assert isinstance(unit, QuantizedInput)
    return "quantize"


def _result(unit: QuantizedUnit) -> str:
    fq = unit.activation_post_process
    if fq is None:
        return "int32"
    return f"{fq.spec.dtype} × {float(fq.scale.detach()[0]):.5g}" if fq.is_ready() else f"{fq.spec.dtype}, no scale yet"


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max((len(r[i]) for r in rows), default=0) for i in range(len(rows[0]) if rows else 0)]
    return ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]
