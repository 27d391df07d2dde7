"""Runs a PyTorch model operator by operator on an example, and writes down every operator that depends on its inputs.

What depends on constants alone is computed by PyTorch itself, at once; sizes, ranks and dtypes of computed tensors are
known from the example. Only what reads the *values* of a computed tensor to decide something has no place in a program.
Quantisation of constants stays visible: the scales of weights would be lost otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hbc.diagnostics import BadNode, FrontendError, NotTaken
from hbc.ir.types import DType, Quant

from .problem import problem, quoted
from .torch_records import Record, Ref, Weight

QUANTISERS = {
    "aten::fake_quantize_per_tensor_affine", "aten::fake_quantize_per_channel_affine",
    "aten::fake_quantize_per_tensor_affine_cachemask", "aten::fake_quantize_per_channel_affine_cachemask",
    "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    "aten::_fake_quantize_learnable_per_tensor_affine", "aten::_fake_quantize_learnable_per_channel_affine",
    "aten::fused_moving_avg_obs_fake_quant", "aten::_fused_moving_avg_obs_fq_helper",
    "aten::quantize_per_tensor", "aten::quantize_per_channel", "aten::dequantize", "hbc::fake_quantize",
    "quantized_decomposed::quantize_per_tensor", "quantized_decomposed::dequantize_per_tensor",
    "quantized_decomposed::quantize_per_channel", "quantized_decomposed::dequantize_per_channel",
    "quantized_decomposed::fake_quant_per_channel",
}  # fmt: skip
_READS = {
    "item", "Int", "Float", "Bool", "ScalarImplicit", "FloatImplicit", "IntImplicit", "is_nonzero", "equal", "tolist",
    "_local_scalar_dense", "allclose",
}  # fmt: skip
CREATES = {
    "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty",
    "_shape_as_tensor", "empty_strided", "new_empty_strided",
}  # fmt: skip
_RANDOM = {
    "rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "bernoulli", "normal", "uniform", "randperm",
    "multinomial", "poisson", "exponential", "cauchy", "log_normal", "geometric", "random", "binomial",
}  # fmt: skip
SAME = {
    "detach", "detach_", "alias", "lift_fresh", "lift_fresh_copy", "requires_grad_", "contiguous", "clone", "to",
    "_to_copy", "type_as", "dropout", "dropout_", "feature_dropout", "alpha_dropout", "native_dropout", "data", "cpu",
    "float", "identity", "positive", "resolve_conj", "resolve_neg", "conj", "_conj", "real",
}  # fmt: skip
_DTYPES = {
    "float32": DType.F32, "float64": DType.F64, "float16": DType.F16, "bfloat16": DType.F32, "int8": DType.I8,
    "uint8": DType.U8, "int16": DType.I16, "uint16": DType.U16, "int32": DType.I32, "uint32": DType.U32,
    "int64": DType.I64, "uint64": DType.U64, "bool": DType.BOOL, "quint8": DType.U8, "qint8": DType.I8,
    "qint32": DType.I32,
}  # fmt: skip


@dataclass(frozen=True)
class Spot:
    """Where the walk is: the path of the user's module, and file and line of the user's code."""

    scope: str = ""
    source: str = ""


class Live:
    """A computed tensor at work: how records call it, and its value on the example.

    What writes to it in place changes `ref` and `tensor` for everyone who holds it; `version` counts those writes.
    `view`: how it was taken out of another tensor (`torch_views`).
    """

    __slots__ = ("ref", "seen", "tensor", "version", "view")

    def __init__(self, ref: Ref, tensor: Any) -> None:
        self.ref, self.tensor = ref, tensor
        self.version, self.seen = 0, 0
        self.view: Any = None


class Recorder:
    """The records so far, and the names that were given."""

    def __init__(self, torch: Any, file: str) -> None:
        self.torch, self.file = torch, file
        self.records: list[Record] = []
        self.notes: dict[str, None] = {}
        self._taken: Counter[str] = Counter()
        self._named: dict[int, tuple[Any, str]] = {}  # constants by identity; held, so that no other gets its number

    # -- names

    def fresh(self, base: str) -> str:
        """`base`, with a number behind it where it is taken."""
        count = self._taken[base]
        self._taken[base] += 1
        return self.fresh(f"{base}_{count}") if count else base

    def name_constant(self, tensor: Any, name: str) -> None:
        """`name` for a constant that has none yet."""
        self._named.setdefault(id(tensor), (tensor, name))

    def _weight(self, tensor: Any, spot: Spot, op: str) -> Weight:
        if id(tensor) not in self._named:
            self._named[id(tensor)] = (tensor, self.fresh(f"{_join(spot.scope, short(op))}:constant"))
        return Weight(self._named[id(tensor)][1], tensor)

    # -- messages

    def fail(self, spot: Spot, op: str, what: str, why: str = "", hint: str = "", kind: Any = BadNode) -> FrontendError:
        """A FrontendError at an operator."""
        return problem(what, where=place(self.file, _join(spot.scope, short(op)), op, spot.source), why=why, hint=hint,
                       kind=kind)  # fmt: skip

    def note(self, text: str) -> None:
        """Something that the user should know; said once."""
        self.notes.setdefault(text)

    # -- values

    def input(self, name: str, tensor: Any) -> Live:
        """A new input of the model."""
        return Live(self._ref(self.fresh(name), tensor), tensor)

    def apply(
        self, op: str, function: Callable[..., Any], names: Sequence[str], values: Sequence[Any], spot: Spot
    ) -> Any:
        """What `function` makes of `values`; where they hold a Live, a record is left and the result is Live, too."""
        word = op.partition("::")[2]
        alive = [v for v in _flat(values) if isinstance(v, Live)]
        if word.removesuffix("_") in _RANDOM:
            hint = "make random numbers outside of the model and give them as an input"
            raise self.fail(spot, op, "the model draws random numbers", hint=hint, kind=NotTaken)
        if alive and word in _READS and any(v.ref.constant is None for v in alive):
            raise self.data_dependent(spot, op)
        result = self._run(op, function, [raw_of(v) for v in values], spot)
        if (not alive and op not in QUANTISERS) or not _holds_tensor(self.torch, result) or word in CREATES:
            return result
        if word in SAME and self._is_same(values, result):
            return self._same(values[0], result)
        return self.record(op, function, names, values, result, spot)

    def record(
        self,
        op: str,
        function: Callable[..., Any],
        names: Sequence[str],
        values: Sequence[Any],
        result: Any,
        spot: Spot,
    ) -> Any:
        """Leave a record of an operator that gave `result` on the example; its results as Lives."""
        node = self.fresh(_join(spot.scope, short(op)))
        fixed = all(v.ref.constant is not None for v in _flat(values) if isinstance(v, Live))
        made: list[Live] = []
        whole = self._made(result, node, fixed, made)
        args = {name: self._arg(v, spot, op) for name, v in zip(names, values, strict=False)}
        fault = next(filter(None, (self._kind_fault(v.tensor, spot, op) for v in made)), None)
        refs = tuple(v.ref for v in made)
        self.records.append(Record(op, args, refs, node, spot.source, fault, lambda a: function(*a)))
        return whole

    def data_dependent(self, spot: Spot, op: str) -> FrontendError:
        """The error for what decides by a value that only running tells."""
        why = "a program has one order of instructions, whatever the data are"
        hint = "decide outside of the model, or compute both ways and pick with torch.where"
        return self.fail(spot, op, "the model decides by a computed value", why=why, hint=hint, kind=NotTaken)

    def _run(self, op: str, function: Callable[..., Any], raw: Sequence[Any], spot: Spot) -> Any:
        try:
            with self.torch.no_grad():
                return function(*raw)
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, AssertionError) as error:
            why = next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]
            hint = "check --example: shapes, dtypes and their order"
            raise self.fail(spot, op, "PyTorch can't run this on the example", why=why, hint=hint) from error

    def _is_same(self, values: Sequence[Any], result: Any) -> bool:
        first = values[0]
        result = result[0] if isinstance(result, (tuple, list)) else result
        return isinstance(first, Live) and first.tensor.dtype == result.dtype and (
            first.tensor.shape == result.shape and bool(self.torch.equal(_plain(first.tensor), _plain(result)))
        )  # fmt: skip

    def _same(self, live: Live, result: Any) -> Any:
        if isinstance(result, (tuple, list)):  # native_dropout: the tensor and a mask
            return (live, *result[1:])
        if result.data_ptr() == live.tensor.data_ptr():
            return live
        return Live(live.ref, result)

    def _made(self, result: Any, node: str, fixed: bool, made: list[Live]) -> Any:  # noqa: FBT001
        if isinstance(result, (list, tuple)):
            parts = [self._made(r, node, fixed, made) for r in result]
            return parts if isinstance(result, list) else tuple(parts)
        if not isinstance(result, self.torch.Tensor):
            return result
        name = node if not made else f"{node}.{len(made)}"
        live = Live(self._ref(name, result, constant=result if fixed else None), result)
        made.append(live)
        return live

    def _arg(self, value: Any, spot: Spot, op: str) -> Any:
        if isinstance(value, Live):
            return value.ref
        if isinstance(value, self.torch.Tensor):
            return self._weight(value, spot, op)
        if isinstance(value, (list, tuple)):
            return tuple(self._arg(v, spot, op) for v in value)
        return value

    def as_arg(self, value: Any, spot: Spot) -> Any:
        """How records speak of `value`."""
        return self._arg(value, spot, "output")

    def _ref(self, name: str, tensor: Any, constant: Any = None) -> Ref:
        if str(tensor.dtype) == "torch.bfloat16":
            self.note("it computes in bfloat16; hbc computes the same in float32, which rounds less")
        dtype = _DTYPES.get(str(tensor.dtype).removeprefix("torch."), DType.F32)  # `_kind_fault` tells of any other
        return Ref(name, tuple(tensor.shape), dtype, quant_of(tensor), constant)

    def _kind_fault(self, tensor: Any, spot: Spot, op: str) -> FrontendError | None:
        """Why a result is nothing that a program holds: complex numbers, a sparse tensor; None where it is."""
        if str(tensor.dtype).removeprefix("torch.") in _DTYPES and tensor.layout is self.torch.strided:
            return None
        why = f"it gives {tensor.dtype}, {tensor.layout}".replace("torch.", "")
        hint = "cut the model before it, and do the rest outside"
        return self.fail(
            spot, op, f"the result of {op} is of no kind that hbc takes", why=why, hint=hint, kind=NotTaken
        )


def quant_of(tensor: Any) -> Quant | None:
    """How the integers of one of PyTorch's quantised tensors stand for reals; None for plain tensors."""
    if not tensor.is_quantized:
        return None
    if "per_channel" in str(tensor.qscheme()):
        scales, zeros = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
        return Quant(tuple(map(float, scales.float())), tuple(map(int, zeros)), tensor.q_per_channel_axis())
    return Quant((float(tensor.q_scale()),), (int(tensor.q_zero_point()),))


def place(file: str, node: str, op: str, source: str) -> str:
    """An operator as messages name it: `m.pt: node 'conv1/conv2d' (aten::conv2d), net.py:27`."""
    return f"{file}: node {quoted(node)} ({op})" + (f", {source}" if source else "")


def short(op: str) -> str:
    """`conv2d` of `aten::_convolution`'s kind of names: without namespace, underscores and what they decorate."""
    return op.partition("::")[2].strip("_") or op


def _join(scope: str, word: str) -> str:
    return f"{scope}/{word}" if scope else word


def _flat(values: Any) -> Iterator[Any]:
    if isinstance(values, (list, tuple)):
        for value in values:
            yield from _flat(value)
    elif isinstance(values, dict):
        yield from _flat(list(values.values()))
    else:
        yield values


def raw_of(value: Any) -> Any:
    """A value with tensors in place of Lives."""
    if isinstance(value, Live):
        return value.tensor
    if isinstance(value, list):
        return [raw_of(v) for v in value]
    return tuple(raw_of(v) for v in value) if isinstance(value, tuple) else value


def _plain(tensor: Any) -> Any:
    return tensor.int_repr() if tensor.is_quantized else tensor


def _holds_tensor(torch: Any, result: Any) -> bool:
    return any(isinstance(r, torch.Tensor) for r in _flat(result))
