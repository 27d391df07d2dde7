"""`Emitter`: an LLVM function under construction, with the loops, memory accesses and vectors that kernels are made of.

A "value of n lanes" is `<n x T>` for n > 1 and a plain `T` for n = 1, so that one piece of emitting code serves both
the vector body and the scalar tail of a loop. Nothing here carries fast-math flags, and nothing contracts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from llvmlite import ir

from ..types import DType
from .host import Host

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
PTR = ir.PointerType()
VOID = ir.VoidType()

_ELEMENT = {
    DType.I8: I8, DType.U8: I8, DType.I16: I16, DType.U16: I16, DType.I32: I32, DType.U32: I32, DType.I64: I64,
    DType.U64: I64, DType.F16: F16, DType.F32: F32, DType.F64: F64, DType.BOOL: I8,
}  # fmt: skip

Body = Callable[[ir.Value, list[ir.Value]], Sequence[ir.Value]]


def element(dtype: DType) -> ir.Type:
    """The LLVM type of one element; signed and unsigned share it."""
    return _ELEMENT[dtype]


def vector(scalar: ir.Type, lanes: int) -> ir.Type:
    """`<lanes x scalar>`, or `scalar` itself for one lane."""
    return scalar if lanes == 1 else ir.VectorType(scalar, lanes)


def lanes_of(value: ir.Value | ir.Type) -> int:
    """How many lanes a value or type has."""
    ty = value if isinstance(value, ir.Type) else value.type
    return int(ty.count) if isinstance(ty, ir.VectorType) else 1


def scalar_of(value: ir.Value | ir.Type) -> ir.Type:
    """The type of one lane of a value or type."""
    ty = value if isinstance(value, ir.Type) else value.type
    return ty.element if isinstance(ty, ir.VectorType) else ty


def const(ty: ir.Type, value: float, lanes: int = 1) -> ir.Constant:
    """A constant of `lanes` equal lanes. `ty` may itself be a vector type."""
    if isinstance(ty, ir.VectorType):
        ty, lanes = ty.element, ty.count
    one = ir.Constant(ty, value)
    if lanes == 1:
        return one
    return _Splat(ir.VectorType(ty, lanes), [one] * lanes)


class _Splat(ir.Constant):
    """Equal lanes. Printed lane by lane, such constants would make up most of a module's text."""

    def _get_reference(self) -> str:
        return f"splat ({self.constant[0]})"


def i64(value: ir.Value | int) -> ir.Value:
    """An i64 from a Python int; LLVM values pass through."""
    return ir.Constant(I64, value) if isinstance(value, int) else value


class Emitter:
    """One function being written: `b` is its IRBuilder, `args` its arguments. The module's functions share helpers."""

    def __init__(
        self, module: ir.Module, host: Host, helpers: dict[object, ir.Function], function: ir.Function
    ) -> None:
        self.module = module
        self.host = host
        self.function = function
        self.args: Sequence[ir.Value] = function.args
        self.b = ir.IRBuilder(function.append_basic_block("entry"))
        self._helpers = helpers

    # ---- functions

    def helper(
        self,
        key: tuple[object, ...],
        args: Sequence[ir.Type],
        emit: Callable[[Emitter], ir.Value | None],
        ret: ir.Type = VOID,
    ) -> ir.Function:
        """The module's function for `key`, written by `emit` on first request; `key[0]` names it.

        `emit` returns the value to return, or None for void. The key must hold everything that `emit` depends on.
        """
        if key not in self._helpers:
            fn = ir.Function(self.module, ir.FunctionType(ret, args), f"{key[0]}.{len(self._helpers)}")
            fn.linkage = "internal"
            for attribute in ("noinline", "nounwind"):
                fn.attributes.add(attribute)
            self._helpers[key] = fn
            inner = Emitter(self.module, self.host, self._helpers, fn)
            result = emit(inner)
            inner.b.ret_void() if result is None else inner.b.ret(result)
        return self._helpers[key]

    def call(self, fn: ir.Function, *args: ir.Value | int) -> ir.Value:
        """Call `fn`; Python ints become i64."""
        return self.b.call(fn, [i64(a) for a in args])

    def intrinsic(self, name: str, ret: ir.Type, *args: ir.Value) -> ir.Value:
        """Call the intrinsic whose full (mangled) name is `name`."""
        fn = self.module.globals.get(name)
        if fn is None:
            fn = ir.Function(self.module, ir.FunctionType(ret, [a.type for a in args]), name)
        return self.b.call(fn, args)

    def overloaded(self, name: str, *args: ir.Value) -> ir.Value:
        """Call intrinsic `name` for, and returning, its first argument's type: `llvm.smax` → `llvm.smax.v16i32`."""
        return self.intrinsic(f"{name}.{mangled(args[0].type)}", args[0].type, *args)

    # ---- memory

    def at(self, base: ir.Value, offset: ir.Value | int, scale: int = 1) -> ir.Value:
        """The address `base + offset · scale`, in bytes."""
        if isinstance(offset, int):
            return base if offset == 0 else self.b.gep(base, [i64(offset * scale)], source_etype=I8)
        unit = {1: I8, 2: I16, 4: I32, 8: I64}.get(scale)
        if unit is None:
            return self.b.gep(base, [self.b.mul(offset, i64(scale))], source_etype=I8)
        return self.b.gep(base, [offset], source_etype=unit)

    def load(self, base: ir.Value, index: ir.Value | int, scalar: ir.Type, lanes: int = 1) -> ir.Value:
        """`lanes` consecutive elements of type `scalar` from element `index` on; aligned as one element is."""
        size = size_of(scalar)
        return self.b.load(self.at(base, index, size), typ=vector(scalar, lanes), align=size)

    def store(self, value: ir.Value, base: ir.Value, index: ir.Value | int) -> None:
        """Store the lanes of `value` to consecutive elements from element `index` on."""
        size = size_of(scalar_of(value))
        self.b.store(value, self.at(base, index, size), align=size)

    def load_first(self, base: ir.Value, index: ir.Value | int, scalar: ir.Type, lanes: int, count: int) -> ir.Value:
        """`lanes` lanes of which the first `count` are loaded, reading no further; the others are 0."""
        if count == lanes:
            return self.load(base, index, scalar, lanes)
        start = self.at(base, index, size_of(scalar))
        value: ir.Value = ir.Constant(vector(scalar, lanes), None)
        for i in range(count):
            value = self.b.insert_element(value, self.load(start, i, scalar), ir.Constant(I32, i))
        return value

    def store_first(self, value: ir.Value, count: int, base: ir.Value, index: ir.Value | int) -> None:
        """Store the first `count` lanes of `value`, writing no further: one store per binary digit of `count`."""
        if count == lanes_of(value):
            self.store(value, base, index)
            return
        start, done = self.at(base, index, size_of(scalar_of(value))), 0
        while done < count:
            piece = 1 << ((count - done).bit_length() - 1)
            if piece == 1:
                part = self.b.extract_element(value, ir.Constant(I32, done))
            else:
                part = self.shuffle(value, range(done, done + piece))
            self.store(part, start, done)
            done += piece

    # ---- values

    def splat(self, value: ir.Value, lanes: int) -> ir.Value:
        """A scalar in every lane."""
        if lanes == 1:
            return value
        ty = ir.VectorType(value.type, lanes)
        one = self.b.insert_element(ir.Constant(ty, ir.Undefined), value, ir.Constant(I32, 0))
        return self.b.shuffle_vector(one, ir.Constant(ty, ir.Undefined), const(I32, 0, lanes))

    def shuffle(self, a: ir.Value, order: Sequence[int], b: ir.Value | None = None) -> ir.Value:
        """The lanes of `a`, and behind them those of `b` (of one length), that `order` names by number."""
        mask = ir.Constant(ir.VectorType(I32, len(order)), list(order))
        return self.b.shuffle_vector(a, a if b is None else b, mask)

    def resize(self, value: ir.Value, scalar: ir.Type, *, signed: bool = True) -> ir.Value:
        """An integer value sign-extended (zero-extended unless `signed`) or truncated to lanes of type `scalar`."""
        have, ty = scalar_of(value).width, vector(scalar, lanes_of(value))
        if have == scalar.width:
            return value
        if have > scalar.width:
            return self.b.trunc(value, ty)
        return self.b.sext(value, ty) if signed else self.b.zext(value, ty)

    def smax(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The larger of two signed integers, lane by lane."""
        return self.overloaded("llvm.smax", a, b)

    def smin(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The smaller of two signed integers, lane by lane."""
        return self.overloaded("llvm.smin", a, b)

    # ---- control

    @contextmanager
    def loop(self, start: ir.Value | int, stop: ir.Value | int, step: int = 1) -> Iterator[ir.Value]:
        """`for i in range(start, stop, step)`: the body is what the `with` emits; runs zero times if start ≥ stop."""
        b, begin, end = self.b, i64(start), i64(stop)
        head, done = b.append_basic_block("loop"), b.append_basic_block("done")
        entry = b.block
        b.cbranch(b.icmp_signed("<", begin, end), head, done)
        b.position_at_end(head)
        i = b.phi(I64)
        i.add_incoming(begin, entry)
        yield i
        after = b.add(i, i64(step))
        i.add_incoming(after, b.block)
        b.cbranch(b.icmp_signed("<", after, end), head, done)
        b.position_at_end(done)

    def fold(
        self,
        start: ir.Value | int,
        stop: ir.Value | int,
        init: Sequence[ir.Value],
        body: Body,
        *,
        step: int = 1,
        nonempty: bool = False,
    ) -> list[ir.Value]:
        """A loop that carries values in registers: `state = body(i, state)` for i in range; returns the last state.

        `nonempty` says that start < stop, and saves the test and the merging of two ways out.
        """
        b, begin, end = self.b, i64(start), i64(stop)
        head, done = b.append_basic_block("fold"), b.append_basic_block("folded")
        entry = b.block
        b.branch(head) if nonempty else b.cbranch(b.icmp_signed("<", begin, end), head, done)
        b.position_at_end(head)
        i = b.phi(I64)
        state = [b.phi(v.type) for v in init]
        result = list(body(i, list(state)))
        after = b.add(i, i64(step))
        latch = b.block
        b.cbranch(b.icmp_signed("<", after, end), head, done)
        for phi, first, later in zip([i, *state], [begin, *init], [after, *result], strict=True):
            phi.add_incoming(first, entry)
            phi.add_incoming(later, latch)
        b.position_at_end(done)
        if nonempty:
            return result
        outs = [b.phi(v.type) for v in init]
        for phi, first, later in zip(outs, init, result, strict=True):
            phi.add_incoming(first, entry)
            phi.add_incoming(later, latch)
        return list(outs)

    @contextmanager
    def when(self, condition: ir.Value) -> Iterator[None]:
        """The body runs where the i1 `condition` holds."""
        with self.b.if_then(condition):
            yield


def size_of(scalar: ir.Type) -> int:
    """Bytes of one element of an LLVM scalar type."""
    if isinstance(scalar, ir.IntType):
        return int(scalar.width) // 8
    return {F16: 2, F32: 4, F64: 8}[scalar]


def mangled(ty: ir.Type) -> str:
    """How LLVM writes a type in the name of an overloaded intrinsic: `v16i32`, `f64`."""
    if isinstance(ty, ir.VectorType):
        return f"v{ty.count}{mangled(ty.element)}"
    return f"i{ty.width}" if isinstance(ty, ir.IntType) else {F16: "f16", F32: "f32", F64: "f64"}[ty]
