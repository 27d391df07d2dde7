"""What `vpmaddubsw` kernels rely on: bounded sums of weights, and tensors that hold no negative number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hbc_runtime.isa import Clamp, Concat, Instruction, Lut, Maximum, MaxPool, Minimum, Slice, Transpose
from hbc_runtime.jit.pair_pack import choose_merge, pack_further, split_panels
from hbc_runtime.jit.ranges import is_positive, with_positives
from hbc_runtime.program import BpuSegment, Constants, CpuSegment, Model, Segment, Storage, Tensor
from hbc_runtime.types import DType

LIMIT = 1 << 15


def worst(panels: np.ndarray, merge: int, *, signed: bool) -> tuple[int, int]:
    """The least and the largest sum that any left bytes can give in i16, by trying the ends."""
    low = high = 0
    ends = np.array([-128, 127] if signed else [0, 127])
    for start in range(0, panels.shape[4], merge):
        group = panels[:, :, :, :, start : start + merge].astype(np.int64)
        products = group[..., None] * ends
        for pick, name in ((np.min, "low"), (np.max, "high")):
            sums = pick(products, axis=-1).reshape(*group.shape[:-1], 2, 2).sum(axis=(4, -1))
            low, high = (min(low, int(sums.min())), high) if name == "low" else (low, max(high, int(sums.max())))
    return low, high


def panels_of(kind: str, seed: int, segment: tuple[int, int, int], vectors: int) -> np.ndarray:
    """Weights [1, 2, KH, segments, steps, vectors, 8, 4]."""
    rng = np.random.default_rng(seed)
    shape = (1, 2, *segment, vectors, 8, 4)
    made = {
        "lowest": lambda: np.full(shape, -128), "highest": lambda: np.full(shape, 127),
        "ends": lambda: rng.choice([-128, 127], shape), "any": lambda: rng.integers(-128, 128, shape),
        "bell": lambda: np.clip(np.round(rng.normal(0, 40, shape)), -127, 127),
    }  # fmt: skip
    return made[kind]().astype(np.int8)


@given(
    kind=st.sampled_from(["lowest", "highest", "ends", "any", "bell"]),
    seed=st.integers(0, 99),
    segment=st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 9)),
    vectors=st.sampled_from([1, 2, 4]),
    merge=st.sampled_from([1, 2, 4]),
    signed=st.booleans(),
)
@example(kind="lowest", seed=0, segment=(1, 1, 4), vectors=1, merge=4, signed=False)
@example(kind="highest", seed=0, segment=(1, 1, 4), vectors=1, merge=4, signed=True)
@example(kind="lowest", seed=0, segment=(1, 1, 5), vectors=2, merge=1, signed=True)
@settings(max_examples=150, deadline=None)
def test_no_sum_leaves_i16_and_nothing_is_lost(
    kind: str, seed: int, segment: tuple[int, int, int], vectors: int, merge: int, *, signed: bool
) -> None:
    panels = panels_of(kind, seed, segment, vectors)
    if signed and panels.min() == -128:
        assert choose_merge(panels, signed=True) == 1
        merge = 1
    main, further = split_panels(panels, merge, signed=signed)
    total = main.astype(np.int64).reshape(2, -1, vectors, 8, 4)
    np.add.at(total, (further.panel, further.step), further.weights.astype(np.int64))
    assert np.array_equal(total.reshape(panels.shape), panels)
    alone = further.weights.reshape(1, -1, 1, 1, 1, vectors, 8, 4)
    for weights, steps in ((main, merge), (alone, 1)):
        if weights.size:
            low, high = worst(weights, steps, signed=signed)
            assert -LIMIT <= low <= high < LIMIT
            assert not signed or weights.min() > -128  # whose negation is no byte


def test_few_steps_are_taken_out_where_few_sums_are_large() -> None:
    """One group in excess costs one step, however many of its lanes are; of four, the one that helps most lanes."""
    panels = np.full((1, 1, 1, 1, 8, 2, 8, 4), 10, np.int8)
    panels[0, 0, 0, 0, 6] = 120
    _, further = split_panels(panels, 4, signed=False)
    assert list(further.step) == [6]


def test_many_steps_are_merged_where_the_weights_are_small() -> None:
    small, large = np.full((1, 1, 1, 1, 8, 1, 8, 4), 20, np.int8), np.full((1, 1, 1, 1, 8, 1, 8, 4), 120, np.int8)
    assert [choose_merge(w, signed=False) for w in (small, large)] == [4, 1]


def test_further_steps_say_where_they_read() -> None:
    panels = np.zeros((1, 2, 2, 3, 4, 1, 8, 4), np.int8)
    panels[0, 1, 1, 2, 2:] = 127  # second panel, second row, third segment, the third and fourth step
    _, further = split_panels(panels, 2, signed=False)
    packed = pack_further(further, 2, 4, ((1000, 3), 100, 4))
    starts = packed[:16].view(np.int64)
    counts = [int(packed[s : s + 8].view(np.int64)[0]) for s in starts]
    assert counts == [0, 1]
    assert int(packed[starts[1] + 8 : starts[1] + 16].view(np.int64)[0]) in {1208, 1212}
    assert packed.nbytes == starts[1] + 8 + 8 + 32


# ---- which tensors hold no negative number


class Net:
    """A model of i8 tensors in the arena, built instruction by instruction."""

    def __init__(self) -> None:
        self.tensors = [Tensor("table", (256,), DType.I8, Storage.CONSTANT, 0), self.fresh((1, 4, 4, 8))]
        self.steps: list[Instruction] = []

    @staticmethod
    def fresh(shape: tuple[int, ...]) -> Tensor:
        return Tensor("t", shape, DType.I8, Storage.ARENA)

    def add(self, op: Instruction, shape: tuple[int, ...] = (1, 4, 4, 8)) -> int:
        self.tensors.append(self.fresh(shape))
        self.steps.append(op.__class__(**{**vars(op), "outputs": (len(self.tensors) - 1,)}))
        return len(self.tensors) - 1

    def clamp(self, low: int, x: int = 1) -> int:
        return self.add(Clamp(inputs=(x,), outputs=(), clamp_min=low, clamp_max=127))

    def positive(self, *, after: tuple[Segment, ...] = (), table: int = -128) -> set[int]:
        blob = np.arange(-128, 128, dtype=np.int8).clip(table).tobytes()
        segments = (BpuSegment("s", tuple(self.steps)), *after)
        model = Model("m", (), (), tuple(self.tensors), segments, 4096, Constants(memoryview(blob)))
        return {i for i, t in enumerate(with_positives(model).tensors) if is_positive(t)}


def test_a_clamp_at_zero_is_a_proof_and_others_are_none() -> None:
    net = Net()
    zero, above, below = net.clamp(0), net.clamp(5), net.clamp(-1)
    assert net.positive() == {zero, above}
    assert below not in net.positive()


def test_what_only_copies_is_as_its_operands() -> None:
    net = Net()
    good, bad = net.clamp(0), net.clamp(-1)
    both = net.add(Concat(inputs=(good, good), outputs=(), axis=3), (1, 4, 4, 16))
    mixed = net.add(Concat(inputs=(good, bad), outputs=(), axis=3), (1, 4, 4, 16))
    part = net.add(Slice(inputs=(both,), outputs=(), starts=(0, 0, 0, 0), steps=(1, 1, 1, 1)))
    turned = net.add(Transpose(inputs=(part,), outputs=(), perm=(0, 2, 1, 3)))
    assert net.positive() == {good, both, part, turned}
    assert mixed not in net.positive()


def test_one_operand_of_a_maximum_is_enough_and_a_minimum_needs_both() -> None:
    net = Net()
    good, bad = net.clamp(0), net.clamp(-1)
    large = net.add(Maximum(inputs=(bad, good), outputs=()))
    net.add(Minimum(inputs=(bad, good), outputs=()))
    small = net.add(Minimum(inputs=(large, good), outputs=()))
    assert net.positive() == {good, large, small}


@pytest.mark.parametrize(("pad", "dilation", "proved"), [(0, 1, True), (1, 1, True), (2, 1, False), (1, 2, False)])
def test_a_maximum_over_nothing_is_the_least_number(pad: int, dilation: int, *, proved: bool) -> None:
    net = Net()
    good = net.clamp(0)
    size = 4 + 2 * pad - dilation
    window = {"kernel": (2, 2), "pads": (pad,) * 4, "dilations": (dilation, dilation)}
    pooled = net.add(MaxPool(inputs=(good,), outputs=(), **window), (1, size, size, 8))
    assert net.positive() == ({good, pooled} if proved else {good})


@pytest.mark.parametrize(("table", "proved"), [(0, True), (-1, False)])
def test_a_table_is_read(table: int, *, proved: bool) -> None:
    net = Net()
    looked_up = net.add(Lut(inputs=(1, 0), outputs=()))
    assert net.positive(table=table) == ({looked_up} if proved else set())


def test_what_comes_from_a_cpu_segment_is_not_known() -> None:
    net = Net()
    made = net.clamp(0)
    cpu = CpuSegment("c", inputs=(), outputs=(made,), onnx=b"")
    assert net.positive() == {made}
    assert net.positive(after=(cpu,)) == set()
