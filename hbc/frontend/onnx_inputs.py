"""The graph's inputs: static shapes (`--shape` binds sizes that the model leaves open), and what integers stand for."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto

from hbc.diagnostics import BadModelInput, FrontendError, OpenSizes, ShapeClash, TooLarge
from hbc.diagnostics.several import together
from hbc.ir.location import FileLoc
from hbc.ir.ops import Cast
from hbc.ir.types import DType, Quant, TensorType

from .building import LARGEST
from .onnx_model import Source, domain_of
from .onnx_node import Node
from .onnx_quant import QUANTIZED, read_quant
from .onnx_scope import Scope
from .onnx_tensors import DTYPES, dtype_name
from .problem import listing, problem, quoted

Dim = int | str | None  # a size, a symbol, or nothing known
_ANONYMOUS = {"", "?", "-1", "None", "unk"}  # what exporters write for sizes that need not agree

# Operands of QOperator nodes that are quantised activations: operand → (scale operand, zero point operand).
_TWO = {0: (1, 2), 3: (4, 5)}
_ONE = {0: (1, 2)}
_QLINEAR = {
    "QLinearConv": _TWO, "QLinearMatMul": _TWO, "QLinearAdd": _TWO, "QLinearMul": _TWO, "QGemm": _TWO,
    "QLinearSigmoid": _ONE, "QLinearLeakyRelu": _ONE, "QLinearSoftmax": _ONE, "QLinearAveragePool": _ONE,
    "QLinearGlobalAveragePool": _ONE, "QLinearReduceMean": _ONE, "QLinearWhere": {1: (2, 3), 4: (5, 6)},
    "DequantizeLinear": _ONE,
}  # fmt: skip
_KINDS = {
    "sequence_type": "a sequence", "optional_type": "an optional", "map_type": "a map",
    "sparse_tensor_type": "a sparse tensor", "opaque_type": "of an opaque type",
}  # fmt: skip
_MOVES = {"Identity", "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "MaxPool"}  # keep a per-tensor scale


def graph_inputs(source: Source) -> list[ValueInfoProto]:
    """The inputs that a caller gives: those that no initializer fills."""
    constants = {t.name for t in source.graph.initializer}
    return [i for i in source.graph.input if i.name not in constants]


def bind_inputs(source: Source, shapes: Mapping[str, Sequence[int]]) -> dict[str, TensorType]:
    """Static types of all inputs. `shapes` gives open sizes by input name; a symbol bound in one is bound in all.

    One FrontendError for all inputs whose sizes stay open, with the `--shape` options that would settle them.
    """
    inputs = graph_inputs(source)
    unknown = sorted(set(shapes) - {i.name for i in inputs})
    if unknown:
        why = f"the model's inputs are {listing(quoted(i.name) for i in inputs)}"
        raise problem(
            f"there is no input {listing(map(quoted, unknown))}",
            where=source.file,
            why=why,
            hint="check --shape",
            kind=ShapeClash,
        )
    dims = _all_dims(source, inputs)
    symbols: dict[str, int] = {}
    for name, shape in shapes.items():
        _bind(source, name, dims[name], tuple(shape), symbols)
    found: dict[str, TensorType] = {}
    still_open: dict[str, list[Dim] | None] = {}
    for i in inputs:
        resolved = _resolved(dims[i.name], shapes.get(i.name), symbols)
        sizes = [d for d in resolved or () if isinstance(d, int)]
        if resolved is None or len(sizes) < len(resolved):
            still_open[i.name] = resolved
        else:
            found[i.name] = _checked(source, i, tuple(sizes))
    if still_open:
        raise _open_sizes(source, still_open)
    return found


def _all_dims(source: Source, inputs: Sequence[ValueInfoProto]) -> dict[str, list[Dim] | None]:
    """The declared sizes of every input; one FrontendError for all that are of no type that hbc takes."""
    found: dict[str, list[Dim] | None] = {}
    wrong = []
    for info in inputs:
        try:
            found[info.name] = _dims(source, info)
        except FrontendError as error:
            wrong.append(error)
    if wrong:
        raise together(wrong, "{} inputs can't be taken in", where=source.file, kind=BadModelInput)
    return found


def _resolved(dims: list[Dim] | None, given: Sequence[int] | None, symbols: Mapping[str, int]) -> list[Dim] | None:
    """The shape as far as it is known: the given one, else the declared one with bound symbols filled in."""
    if given is not None:
        return [int(d) for d in given]
    return None if dims is None else [symbols.get(d, d) if isinstance(d, str) else d for d in dims]


def add_inputs(scope: Scope, types: Mapping[str, TensorType]) -> None:
    """Arguments of the graph; integers are typed by what dequantises them, where all agree."""
    for name, t in types.items():
        quant = _quant_of(scope, name, t) if t.dtype in QUANTIZED else None
        scope.values[name] = arg = scope.graph.add_arg(name, TensorType(t.shape, t.dtype, quant))
        if not t.elements:  # nothing to wait for: what reads it can be folded
            scope.set_array(name, np.zeros(t.shape, t.dtype.numpy))
        if t.dtype in {DType.F16, DType.F64}:  # reals are f32 inside
            scope.wide[name], scope.originals[name] = t.dtype, arg
            scope.values[name] = scope.op(Cast, arg, loc=FileLoc(scope.source.file), to=DType.F32).out


def _dims(source: Source, info: ValueInfoProto) -> list[Dim] | None:
    where = f"{source.file}: input {quoted(info.name)}"
    if not info.type.HasField("tensor_type"):
        kind = _KINDS.get(info.type.WhichOneof("value") or "", "of no type")
        raise problem(
            "an input is no tensor",
            where=where,
            why=f"it is {kind}",
            hint="export the model with tensor inputs",
            kind=BadModelInput,
        )
    tensor = info.type.tensor_type
    if tensor.elem_type not in DTYPES:
        what = f"element type {dtype_name(tensor.elem_type)} isn't taken"
        hint = "convert the model to float32 or to 8 and 16 bit integers"
        if tensor.elem_type == TensorProto.STRING:
            hint = "a .hbm has numbers only: do what is done with text before the model, and cut it behind that"
        raise problem(what, where=where, hint=hint, kind=BadModelInput)
    if not tensor.HasField("shape"):
        return None
    dims: list[Dim] = []
    for d in tensor.shape.dim:
        if d.HasField("dim_value") and d.dim_value > 0:
            dims.append(int(d.dim_value))
        elif d.HasField("dim_value") and d.dim_value == 0:
            dims.append(0)
        else:
            dims.append(None if d.dim_param in _ANONYMOUS else d.dim_param)
    return dims


def _bind(source: Source, name: str, dims: list[Dim] | None, shape: tuple[int, ...], symbols: dict[str, int]) -> None:
    where = f"{source.file}: input {quoted(name)}"
    sizes = [str(d) if isinstance(d, int) and d > 0 else "1" for d in dims or shape]
    hint = f"give sizes where the model leaves them open, as in --shape {name}={'x'.join(sizes)}"
    if not shape or min(shape) < 1:
        raise problem(f"the shape {list(shape)} has a size below 1", where=where, hint=hint, kind=ShapeClash)
    if dims is None:
        return
    declared = _declared(dims)
    if len(dims) != len(shape):
        raise problem(
            f"the shape {list(shape)} has rank {len(shape)}",
            where=where,
            why=f"the model says {declared}",
            hint=hint,
            kind=ShapeClash,
        )
    for d, size in zip(dims, shape, strict=True):
        clash = d != size if isinstance(d, int) else d is not None and symbols.setdefault(d, size) != size
        if clash:
            what = f"the shape {'x'.join(map(str, shape))} contradicts the model"
            raise problem(
                what,
                where=where,
                why=f"the model says {declared}",
                hint="give sizes only where the model leaves them open",
                kind=ShapeClash,
            )


def _checked(source: Source, info: ValueInfoProto, shape: tuple[int, ...]) -> TensorType:
    t = TensorType(shape, DTYPES[info.type.tensor_type.elem_type])
    if t.nbytes > LARGEST:
        where = f"{source.file}: input {quoted(info.name)}"
        raise problem(
            f"the shape {list(shape)} is beyond 2 GiB",
            where=where,
            hint="check how the model was exported",
            kind=TooLarge,
        )
    return t


def _open_sizes(source: Source, still_open: Mapping[str, Sequence[Dim] | None]) -> FrontendError:
    """One message with an option per input: known sizes as they are, a batch as 1, other sizes as letters."""
    texts = {name: _suggested(dims) for name, dims in still_open.items()}
    options = " ".join(f"--shape {shlex.quote(f'{name}={text}')}" for name, text in texts.items())
    letters = any(not c.isdigit() and c != "x" for text in texts.values() for c in text)
    why = "; ".join(f"{quoted(name)} is {_declared(dims)}" for name, dims in still_open.items())
    hint = options + (" (with your sizes for the letters)" if letters else "")
    where = f"{source.file}: input {listing(map(quoted, still_open))}"
    return problem("the model leaves sizes of its inputs open", where=where, why=why, hint=hint, kind=OpenSizes)


def _declared(dims: Sequence[Dim] | None) -> str:
    return "of unknown rank" if dims is None else "x".join(str(d or "?") for d in dims)


def _suggested(dims: Sequence[Dim] | None) -> str:
    if dims is None:
        return "SIZExSIZE"
    last = len(dims) - 1
    letters = {last: "W", last - 1: "H" if last == 3 else f"D{last - 1}", 0: "1"}
    return "x".join(str(d) if isinstance(d, int) else letters.get(i, f"D{i}") for i, d in enumerate(dims))


def _quant_of(scope: Scope, name: str, t: TensorType) -> Quant | None:
    found: set[Quant] = set()
    pending = [(name, True)]
    seen = {name}
    while pending:
        tensor, direct = pending.pop()
        for node in scope.readers(tensor):
            found.update(_readings(scope, node, tensor, t if direct else None, t.dtype))
            if node.op_type in _MOVES and node.output and node.output[0] not in seen and node.input[0] == tensor:
                seen.add(node.output[0])
                pending.append((node.output[0], False))
    return found.pop() if len(found) == 1 else None


def _readings(scope: Scope, node: NodeProto, tensor: str, t: TensorType | None, dtype: DType) -> list[Quant]:
    """How `node` reads `tensor`; behind a move (`t` None) only per-tensor readings count."""
    table = _QLINEAR.get(node.op_type, {}) if domain_of(node) in {"", "com.microsoft"} else {}
    if node.op_type == "QLinearConcat":
        table = {i: (i + 1, i + 2) for i in range(2, len(node.input), 3)}
    n = Node(scope, node)
    found = []
    for index, (scale, zero) in table.items():
        if index >= len(node.input) or node.input[index] != tensor or n.integer("block_size"):
            continue
        if scale >= len(node.input) or scope.array(node.input[scale]) is None:
            continue
        if n.has(zero) and scope.array(node.input[zero]) is None:
            continue
        rank = () if t is None else t.shape
        try:
            quant = read_quant(n, scale, zero, dtype, rank, n.integer("axis", 1))
        except FrontendError:
            continue  # the walk meets this node later and says what is wrong
        if quant is not None and min(quant.scale) > 0:
            found.append(quant)
    return found
