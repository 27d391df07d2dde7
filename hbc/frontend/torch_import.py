"""Records → IR: each operator by its rule. What has none, or a form that none takes, is told at once, all together."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from hbc.diagnostics import FrontendError, NotTaken, nearest
from hbc.diagnostics.several import together
from hbc.example import Example
from hbc.ir.core import Gone, Module, Op, Value
from hbc.ir.location import FileLoc, NodeLoc, source_nodes
from hbc.ir.ops import Cast, Const, Quantize
from hbc.ir.types import DType, TensorType

from .files import ModelFile
from .onnx_failures import Failures
from .problem import NODE_FAULTS
from .torch_model import record_file
from .torch_node import Rule, TorchNode, TorchScope, in_ir, reads
from .torch_ops import RULES
from .torch_records import Recorded, Ref

BY = "import"


def import_torch(file: ModelFile, examples: Sequence[Example], output_names: Sequence[str] = ()) -> Module:
    """The module of a TorchScript or `.pt2` file. FrontendError for anything that can't be taken in."""
    recorded = record_file(file, examples, output_names)
    module = module_of(recorded)
    module.metadata["sha256"] = hashlib.sha256(file.data).hexdigest()
    return module


def module_of(recorded: Recorded) -> Module:
    """The module of a recorded model."""
    scope = TorchScope(recorded.file)
    failures = Failures(recorded.file)
    for ref in recorded.inputs:
        _add_input(scope, ref)
    used = _used(recorded)
    for record in recorded.records:
        if record.node not in used:
            continue
        try:
            rule = _rule(TorchNode(scope, record))
            if failures.touch(reads(record)):
                failures.skip(r.name for r in record.results)
            else:
                _import_record(TorchNode(scope, record, used[record.node]), rule, used[record.node])
        except FrontendError as error:
            failures.add(error, (r.name for r in record.results))
    failures.settle()
    for name, arg in recorded.outputs:
        _add_output(scope, name, scope.value(arg), arg.dtype if isinstance(arg, Ref) else None)
    _sweep(scope)
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", Path(recorded.file).stem).strip("_") or "model"
    notes = (*recorded.notes, *_lost_scales(recorded))
    metadata = {"source": recorded.file, "opset": "", "producer": recorded.producer}
    metadata |= {"notes": "\n".join(notes)} if notes else {}
    return _traced(Module(scope.graph, name=name, metadata=metadata), recorded, used)


def _used(recorded: Recorded) -> dict[str, set[str]]:
    """By node that an output depends on: its results that are read."""
    wanted = {arg.name for _, arg in recorded.outputs if isinstance(arg, Ref)}
    used: dict[str, set[str]] = {}
    for record in reversed(recorded.records):
        found = {r.name for r in record.results} & wanted
        if found:
            used[record.node] = found
            wanted.update(reads(record))
    return used


def _add_input(scope: TorchScope, ref: Ref) -> None:
    """An argument of the graph; reals of another width become f32 at once."""
    value = scope.graph.add_arg(ref.name, TensorType(ref.shape, ref.dtype))
    dtype = in_ir(ref.dtype)
    if dtype is not ref.dtype:
        value = scope.op(Cast, value, loc=FileLoc(scope.file), to=dtype).out
    scope.values[ref.name] = value


def _add_output(scope: TorchScope, name: str, value: Value, dtype: DType | None) -> None:
    """Return an output in the dtype that the model gives it; integers of a quantised tensor stay integers."""
    if dtype is not None and dtype.is_float and value.type.dtype is DType.F32 and dtype is not DType.F32:
        value = scope.op(Cast, value, loc=value.op.loc if value.op else FileLoc(scope.file), to=dtype).out
    scope.graph.add_output(name, value)


def _rule(n: TorchNode) -> Rule:
    """The operator's rule; FrontendError where there is none."""
    record = n.record
    if record.fault is not None:
        raise together([record.fault], "{}", where=n.scope.file, kind=NotTaken)
    if record.op in RULES:
        return RULES[record.op]
    if record.op in REFUSED:
        raise n.fail(f"{record.op} isn't taken", hint=REFUSED[record.op], kind=NotTaken)
    raise n.fail(f"hbc has no rule for {record.op}", hint=_offer(record.op), kind=NotTaken)


def _import_record(n: TorchNode, rule: Rule, used: set[str]) -> None:
    record = n.record
    try:
        made = rule(n)
        values = [made] if isinstance(made, Value) else list(made)
        for ref, value in zip(record.results, values, strict=True):
            if value is None and ref.name in used:
                raise n.refuse(f"its result {record.results.index(ref)} is read, which hbc doesn't make")
            if value is not None:
                _bind(n.scope, n, ref, value)
    except FrontendError:
        raise
    except NODE_FAULTS as error:
        why = str(error) or type(error).__name__
        raise n.fail("the operator can't be taken in", why=why, hint="check its operands and attributes") from error


_OPEN = "the size of its result depends on the data: use torch.where, or torch.topk for a fixed number of them"
_DYNAMIC = (
    "it finds its scales anew at every run: quantise statically (prepare, calibrate, convert), or give hbc quantize "
    "the float model"
)
REFUSED = {
    **{f"quantized::{name}_dynamic": _DYNAMIC for name in ("linear", "linear_relu", "conv1d", "conv2d", "conv3d",
                                                           "conv_transpose1d", "conv_transpose2d")},
    **{f"aten::{name}": _DYNAMIC for name in ("quantized_lstm", "quantized_gru")},
    **{f"aten::{name}": _OPEN for name in ("nonzero", "masked_select", "_unique2", "unique_dim")},
}  # fmt: skip


def _offer(op: str) -> str:
    near = nearest(op, sorted(RULES), limit=1)
    return f"{near} Cut the model before it, or say it by other operators".strip()


def _bind(scope: TorchScope, n: TorchNode, ref: Ref, value: Value) -> None:
    """`value` stands for `ref` from now on: in its dtype, and quantised as PyTorch's own tensor is."""
    if ref.quant is not None and value.type.quant is None and value.type.dtype is DType.F32:
        value = n.op(Quantize, value, type=TensorType(ref.shape, ref.dtype, ref.quant))
    elif value.type.quant is None:
        value = n.cast(value, in_ir(ref.dtype))
    assert value.type.shape == ref.shape, f"{n.where}: {value.type} for {ref}"
    if value.name is None and not isinstance(value.op, Const):
        value.name = ref.name
    scope.values[ref.name] = value


def _sweep(scope: TorchScope) -> None:
    """Drop ops whose results nobody reads: constants that a rule took over in another form."""
    dead: list[Op] = []
    for op in reversed(scope.graph.ops):
        if not any(r.uses for r in op.results):
            op.drop_operands()
            dead.append(op)
    scope.graph.erase(dead)


def _lost_scales(recorded: Recorded) -> list[str]:
    """A note where activations are fake-quantised and weights are plain: torch.jit.freeze folds those away."""
    fakes = [r for r in recorded.records if "fake_quant" in r.op]
    products = [r for r in recorded.records if r.op.rpartition("::")[2] in _PRODUCTS and r.op.startswith("aten")]
    plain = [r.node for r in products if not isinstance(r.args.get("weight"), Ref)]
    if not fakes or not plain or len(plain) < len(products):
        return []
    text = (
        "its activations are fake-quantised, its weights have no scales: torch.jit.freeze folds those away. Save the "
        "model without freezing it, or these layers run on the CPU"
    )
    return [text]


_PRODUCTS = {"_convolution", "convolution", "conv1d", "conv2d", "conv_transpose2d", "linear"}


def _traced(module: Module, recorded: Recorded, used: dict[str, set[str]]) -> Module:
    """`module` with every operator in `sources`, and in `gone` those of which no op is left that runs."""
    running = {n for op in module.graph.ops if not isinstance(op, Const) for n in source_nodes(op.loc)}
    for record in recorded.records:
        loc = NodeLoc(record.node, record.op, recorded.file)
        module.sources += (loc,)
        if record.node not in used:
            module.gone[loc] = Gone(BY, "no output depends on it")
        elif loc not in running:
            why = "it changes nothing, or is part of another operator's op"
            fixed = all(r.constant is not None for r in record.results)
            module.gone[loc] = Gone(BY, "its value is known when the model is read" if fixed else why)
    return module
