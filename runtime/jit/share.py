"""How the threads of one run share its work, in JIT code: `take`, which every thread calls until nothing is left.

A run is a row of stages; a stage has `items`, cut into one part per thread. A thread takes pieces of its own part, each
half of what is left, then of the others'. So a thread keeps to the same part of every layer, whose memory lies in its
cache; and one that comes late, or that the system has put aside, delays nobody unless it holds a piece.

The memory of a stage is one line of `done` and one line per part, all i64 that only grow: positions `base` + item,
where `base` is larger for every run than all positions of the runs before. Whatever an earlier run left there is below
`base`, so nothing is ever cleared; and a thread that is late by a whole run finds its run's work taken, and goes.
"""

from __future__ import annotations

from llvmlite import ir

from .emitter import I32, I64, PTR, Emitter, i64
from .waiting import spin_until

LINE = 64  # bytes that one CPU writes at a time
RUN_BITS = 32  # a run's base is its number shifted by this: no stage has as many items
MOST_ITEMS = 1 << (RUN_BITS - 1)
STATE = 2  # i64 words of a thread's own state in a stage: items done but not yet counted, parts found empty


def take(e: Emitter) -> ir.Function:
    """The module's `i64 take(ptr stage, i64 pitch, i64 base, i64 items, i64 thread, i64 parts, ptr state)`.

    Returns a piece of the stage as begin + (end << 32); 0 once every item is done, by whichever thread. `stage` is the
    line of `done`, part p's line lies (p + 1) · `pitch` bytes behind it. `state` holds zeros before the first call.
    `parts` is 0 for a thread that works alone: it gets all items at once and looks at no memory but `state`.
    """
    return e.helper(("take",), [PTR, I64, I64, I64, I64, I64, PTR], _emit_take, I64)


def state_of(e: Emitter) -> ir.Value:
    """Room for a `state`, in the stack frame of the function under construction."""
    return words(e, STATE)


def words(e: Emitter, count: int) -> ir.Value:
    """The address of `count` i64 in the stack frame of the function under construction; not for use in a loop."""
    room = e.b.alloca(ir.ArrayType(I64, count))
    room.type = PTR  # llvmlite gives it the typed pointer that LLVM no longer has
    return room


def clear(e: Emitter, state: ir.Value) -> None:
    """Zeros, for the next stage."""
    for n in range(STATE):
        e.store(i64(0), state, n)


def pieces(e: Emitter, args: list[ir.Value], state: ir.Value) -> _Pieces:
    """`with pieces(…) as (begin, end)`: a loop over what this thread takes of a stage; behind it, the stage is done.

    `args` are those of `take` but the state.
    """
    return _Pieces(e, args, state)


class _Pieces:
    def __init__(self, e: Emitter, args: list[ir.Value], state: ir.Value) -> None:
        self.e, self.args, self.state = e, args, state
        b = e.b
        self.head, self.body, self.left = (b.append_basic_block(n) for n in ("take", "piece", "left"))

    def __enter__(self) -> tuple[ir.Value, ir.Value]:
        e, b = self.e, self.e.b
        clear(e, self.state)
        b.branch(self.head)
        b.position_at_end(self.head)
        piece = e.call(take(e), *self.args, self.state)
        b.cbranch(b.icmp_unsigned("==", piece, i64(0)), self.left, self.body)
        b.position_at_end(self.body)
        return b.zext(b.trunc(piece, I32), I64), b.lshr(piece, i64(32))

    def __exit__(self, *_: object) -> None:
        self.e.b.branch(self.head)
        self.e.b.position_at_end(self.left)


def _emit_take(e: Emitter) -> ir.Value:
    b = e.b
    stage, pitch, base, items, thread, parts, state = e.args
    alone, shared, look, mine, again, claim, got, onward, count = (
        b.append_basic_block(n)
        for n in ("alone", "shared", "look", "mine", "again", "claim", "got", "onward", "count")
    )  # fmt: skip
    skipped = e.load(state, 1, I64)
    b.cbranch(b.icmp_unsigned("==", parts, i64(0)), alone, shared)

    b.position_at_end(alone)
    e.store(i64(1), state, 1)
    everything = b.shl(items, i64(32))
    b.ret(b.select(b.icmp_unsigned("==", skipped, i64(0)), everything, i64(0)))

    b.position_at_end(shared)
    b.branch(look)
    b.position_at_end(look)
    offset = b.phi(I64)
    offset.add_incoming(skipped, shared)
    b.cbranch(b.icmp_unsigned("<", offset, parts), mine, count)

    b.position_at_end(mine)
    part = b.urem(b.add(thread, offset), parts)
    up = b.sub(parts, i64(1))  # the first part is the longest
    low = b.udiv(b.add(b.mul(items, part), up), parts)
    high = b.udiv(b.add(b.mul(items, b.add(part, i64(1))), up), parts)
    line = e.at(stage, b.mul(b.add(part, i64(1)), pitch))
    found = b.load_atomic(line, "monotonic", 8, typ=I64)
    b.branch(again)

    b.position_at_end(again)
    now = b.phi(I64)
    now.add_incoming(found, mine)
    begin = e.overloaded("llvm.smax", now, b.add(base, low))
    left = b.sub(b.add(base, high), begin)
    b.cbranch(b.icmp_signed(">", left, i64(0)), claim, onward)

    b.position_at_end(claim)
    size = b.lshr(b.add(left, i64(1)), i64(1))
    end = b.add(begin, size)
    swap = b.cmpxchg(line, now, end, "monotonic", "monotonic")
    now.add_incoming(b.extract_value(swap, 0), claim)
    b.cbranch(b.extract_value(swap, 1), got, again)

    b.position_at_end(got)
    e.store(b.add(e.load(state, 0, I64), size), state, 0)
    e.store(offset, state, 1)
    b.ret(b.or_(b.sub(begin, base), b.shl(b.sub(end, base), i64(32))))

    b.position_at_end(onward)
    offset.add_incoming(b.add(offset, i64(1)), onward)
    b.branch(look)

    b.position_at_end(count)
    e.store(parts, state, 1)
    _count(e, stage, base, e.load(state, 0, I64))
    e.store(i64(0), state, 0)
    spin_until(e, stage, b.add(base, items))
    return i64(0)


def _count(e: Emitter, stage: ir.Value, base: ir.Value, more: ir.Value) -> None:
    """Add `more` finished items to the stage's `done`, which counts from `base`."""
    b = e.b
    with e.when(b.icmp_signed(">", more, i64(0))):
        again, counted = b.append_basic_block("count_again"), b.append_basic_block("counted")
        entry = b.block
        found = b.load_atomic(stage, "monotonic", 8, typ=I64)
        b.branch(again)
        b.position_at_end(again)
        now = b.phi(I64)
        now.add_incoming(found, entry)
        total = b.add(e.overloaded("llvm.smax", now, base), more)
        swap = b.cmpxchg(stage, now, total, "acq_rel", "monotonic")
        now.add_incoming(b.extract_value(swap, 0), again)
        b.cbranch(b.extract_value(swap, 1), counted, again)
        b.position_at_end(counted)
