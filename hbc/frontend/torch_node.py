"""What an import rule sees of a PyTorch operator: its arguments by name, and the means to build ops in its place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from hbc.diagnostics import FrontendError, NotTaken
from hbc.ir.core import Value
from hbc.ir.location import NodeLoc
from hbc.ir.ops import Cast, Dequantize
from hbc.ir.types import DType, TensorType

from .building import Building, GraphScope
from .torch_recorder import place, quant_of
from .torch_records import Record, Ref, Weight, tensors

Results = Value | Sequence["Value | None"]
Rule = Callable[["TorchNode"], Results]


class TorchScope(GraphScope):
    """The IR values of computed tensors by name, and constants by the path of their attribute."""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.values: dict[str, Value] = {}

    def value(self, arg: Ref | Weight) -> Value:
        """The IR value of a tensor. KeyError where what makes it could not be taken in."""
        if isinstance(arg, Ref):
            return self.values[arg.name]
        return self.typed_const(arg.name, quant_of(arg.tensor), as_array(arg.tensor))


class TorchNode(Building):
    """One operator during the walk."""

    scope: TorchScope

    def __init__(self, scope: TorchScope, record: Record, used: Collection[str] = ()) -> None:
        self.scope, self.record, self._used = scope, record, used
        self.loc = NodeLoc(record.node, record.op, scope.file)
        self.args = list(record.args.values())
        self.word = record.op.partition("::")[2]

    # -- messages

    @property
    def where(self) -> str:
        """The node as messages name it."""
        return place(self.scope.file, self.record.node, self.record.op, self.record.source)

    def refuse(self, why: str, hint: str = "") -> FrontendError:
        """The error for a form of the operator that hbc has no op for."""
        return self.fail(f"this {self.record.op} isn't taken", why=why, hint=hint, kind=NotTaken)

    # -- tensors

    @property
    def result(self) -> Ref:
        """The first result, as PyTorch computed it on the example."""
        return self.record.results[0]

    def reads_result(self, index: int) -> bool:
        """True where something reads result `index`."""
        return self.record.results[index].name in self._used

    def arg(self, key: int | str, default: Any = None) -> Any:
        """An argument by place or name, as it is in the record."""
        if isinstance(key, int):
            return self.args[key] if key < len(self.args) else default
        return self.record.args.get(key, default)

    def has(self, key: int | str) -> bool:
        """True where the argument is given, and isn't None."""
        return self.arg(key) is not None

    def raw(self, key: int | str = 0) -> Value:
        """A tensor as it is: reals, plain integers, or quantised integers."""
        return self._value(self.arg(key), key)

    def x(self, key: int | str = 0) -> Value:
        """A tensor as numbers: PyTorch's quantised tensors as the reals they stand for, other integers plain."""
        return self._numbers(self.arg(key), key)

    def real(self, key: int | str = 0) -> Value:
        """A tensor as f32."""
        return self.cast(self.x(key), DType.F32)

    def many(self, key: int | str = 0) -> list[Value]:
        """A list of tensors as numbers, in the result's dtype."""
        return [self.cast(self._numbers(a, key), self.dtype) for a in self.arg(key)]

    def shape(self, key: int | str = 0) -> tuple[int, ...]:
        """The shape of a tensor."""
        arg = self.arg(key)
        return arg.shape if isinstance(arg, Ref) else tuple(arg.tensor.shape)

    @property
    def dtype(self) -> DType:
        """The dtype that the result has in the IR, where reals are f32."""
        return in_ir(self.result.dtype) if self.result.quant is None else DType.F32

    def pair(self, *keys: int | str) -> list[Value]:
        """Tensors and numbers as operands of one dtype: the result's, or for truth values the wider one of them."""
        keys = keys or (0, 1)
        return [self.operand(k, self.common(*keys)) for k in keys]

    def common(self, *keys: int | str) -> DType:
        """The dtype in which operands meet."""
        if self.dtype is not DType.BOOL:
            return self.dtype
        given = [self.arg(k) for k in keys]
        found = [self.x(k).type.dtype for k, a in zip(keys, given, strict=True) if isinstance(a, (Ref, Weight))]
        wide = [d for d in found if d is not DType.BOOL]
        if any(d.is_float for d in wide) or any(isinstance(a, float) for a in given):
            return DType.F32
        return wide[0] if len(set(wide)) == 1 else DType.I64 if wide else DType.BOOL

    def operand(self, key: int | str, dtype: DType) -> Value:
        """A tensor or a number as an operand of `dtype`."""
        arg = self.arg(key)
        if isinstance(arg, (Ref, Weight)):
            return self.cast(self.x(key), dtype)
        if not isinstance(arg, (bool, int, float)):
            raise self.refuse(f"its operand {key!r} is {arg!r:.40}")
        return self.const(np.asarray(arg, dtype.numpy))

    def cast(self, value: Value, dtype: DType) -> Value:
        """`value` in another dtype, as a number."""
        value = self.stripped(value)
        return value if value.type.dtype is dtype else self.op(Cast, value, to=dtype)

    def _numbers(self, arg: Any, key: int | str) -> Value:
        value = self._value(arg, key)
        is_quantised = arg.quant is not None if isinstance(arg, Ref) else quant_of(arg.tensor) is not None
        return self.op(Dequantize, value) if is_quantised else self.stripped(value)

    def _value(self, arg: Any, key: int | str) -> Value:
        if not isinstance(arg, (Ref, Weight)):
            raise self.refuse(f"its operand {key!r} is {arg!r:.40}, no tensor")
        return self.scope.value(arg)

    # -- numbers

    def array(self, key: int | str) -> np.ndarray | None:
        """The values of an argument where they depend on no input; None for a computed tensor."""
        arg = self.arg(key)
        if isinstance(arg, Weight):
            return as_array(arg.tensor.dequantize() if arg.tensor.is_quantized else arg.tensor)
        if isinstance(arg, Ref):
            fixed = arg.constant
            return None if fixed is None else as_array(fixed.dequantize() if fixed.is_quantized else fixed)
        return np.asarray(arg)

    def known(self, key: int | str) -> np.ndarray:
        """As `array`; FrontendError for a computed tensor."""
        found = self.array(key)
        if found is None:
            raise self.refuse(f"its operand {key!r} is computed from the inputs", "make it a constant of the model")
        return found

    def ints(self, key: int | str, count: int | None = None) -> tuple[int, ...]:
        """A list of integers; a single one stands for `count` of them."""
        arg = self.arg(key)
        values = tuple(int(v) for v in arg) if isinstance(arg, (list, tuple)) else () if arg is None else (int(arg),)
        return values * count if count is not None and len(values) == 1 else values

    def integer(self, key: int | str, default: int = 0) -> int:
        """An integer."""
        arg = self.arg(key)
        return default if arg is None else int(arg)

    def number(self, key: int | str, default: float = 0.0) -> float:
        """A number, in double precision as PyTorch keeps it."""
        arg = self.arg(key)
        return default if arg is None else float(self.known(key).reshape(-1)[0])

    def flag(self, key: int | str, *, default: bool = False) -> bool:
        """A truth value."""
        return bool(self.arg(key, default))

    def axis(self, key: int | str, rank: int, default: int = 0) -> int:
        """An axis, counted from the front."""
        return self.integer(key, default) % max(rank, 1)

    def axes(self, key: int | str, rank: int) -> tuple[int, ...]:
        """A list of axes counted from the front, sorted; all of them where none is given."""
        found = tuple(sorted({a % max(rank, 1) for a in self.ints(key)}))
        return found or tuple(range(rank))

    # -- building

    def typed(self, shape: Sequence[int], like: Value) -> TensorType:
        """A type of `shape` that is otherwise `like`'s."""
        return TensorType(tuple(shape), like.type.dtype, like.type.quant)


def in_ir(dtype: DType) -> DType:
    """The dtype in which the IR computes: reals are f32."""
    return DType.F32 if dtype.is_float else dtype


def as_array(tensor: Any) -> np.ndarray:
    """A tensor's values as NumPy has them: integers of a quantised one, float32 for bfloat16."""
    tensor = tensor.detach().cpu()
    tensor = tensor.int_repr() if tensor.is_quantized else tensor
    if str(tensor.dtype) == "torch.bfloat16":
        tensor = tensor.float()
    return np.ascontiguousarray(tensor.resolve_conj().resolve_neg().numpy()).reshape(tuple(tensor.shape))


def reads(record: Record) -> list[str]:
    """The names of the computed tensors that an operator reads."""
    return [t.name for arg in record.args.values() for t in tensors(arg) if isinstance(t, Ref)]
