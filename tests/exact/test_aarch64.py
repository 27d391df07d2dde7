"""AArch64: code written here for both of its instruction sets gives the reference's bits on an emulated CPU.

The instructions are those of this folder's other tests, several hundred of them in one model, each between guards; one
object file per instruction set, linked by `aarch64.py`. Where neither QEMU's user emulation nor Debian's package of it
can be had, these tests skip.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import llvmlite.binding as llvm
import numpy as np
import pytest

from hbc_runtime.isa import INSTRUCTIONS, Lut, Rounding
from hbc_runtime.jit.assembly import _Assembly, assemble
from hbc_runtime.jit.code import Code
from hbc_runtime.jit.fused import AddedConv2d, QuantizeImage
from hbc_runtime.jit.fusion import fused
from hbc_runtime.jit.host import ISAS, Host, for_isa
from hbc_runtime.jit.quad_depthwise import takes_depthwise
from hbc_runtime.jit.quad_plan import make_quad_plan
from hbc_runtime.program import Model, Storage
from tests.exact import (
    test_added_conv,
    test_bytes,
    test_conv,
    test_conv_transpose,
    test_eltwise,
    test_fusion,
    test_lut,
    test_matmul,
    test_move,
    test_pool,
    test_quant,
    test_reduce,
    test_resize,
    test_sample,
    test_select,
)
from tests.exact.aarch64 import TRIPLE, emulator, run
from tests.exact.recording import Merged, merge, record
from tests.exact.test_added_conv import two_blocks
from tests.exact.test_bytes import square

EXAMPLES = 12  # of each test
HEAVY = (test_added_conv, test_bytes, test_conv, test_conv_transpose, test_matmul)
LIGHT = (
    test_eltwise, test_lut, test_move, test_pool, test_quant, test_reduce, test_resize, test_sample, test_select,
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """An instruction set, and the CPU that QEMU is to be: one that has it and, where there is such, nothing better."""

    isa: str
    cpu: str

    @property
    def host(self) -> Host:
        """The machine that code is made for."""
        return for_isa(next(i for i in ISAS if i.name == self.isa), TRIPLE)


TARGETS = (Target("dotprod", "neoverse-n1"), Target("neon", "cortex-a53"))
targets = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.isa)


@pytest.fixture(scope="module", autouse=True)
def _emulated() -> None:
    found = emulator()
    if isinstance(found, str):
        pytest.skip(found)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@functools.cache
def everything() -> Merged:
    """The instructions of all tests."""
    return merge([one for module in (*HEAVY, *LIGHT) for one in record(module, EXAMPLES)])


def assert_equal(merged: Merged, got: np.ndarray) -> None:
    """The arena is byte for byte what it ought to be; what differs is named."""
    assert got.size == merged.after.size
    wrong = [f"{test}: {op}" for tensor, test, op in merged.owners if not merged.holds(tensor, got)]
    assert not wrong, "\n".join([f"{len(wrong)} of {len(merged.owners)} results differ:", *wrong[:5]])
    assert np.array_equal(merged.known(got), merged.after), "something wrote outside its results"


@functools.cache
def code_of(target: Target) -> Code:
    """All of it as machine code, for one thread or two."""
    return assemble(everything().model, target.host)


@targets
@pytest.mark.parametrize("threads", [1, 2])
def test_every_instruction_gives_the_references_bits(target: Target, threads: int) -> None:
    merged = everything()
    constants = bytes(merged.model.constants.data)
    assert_equal(merged, run(code_of(target), target.cpu, merged.before, constants, threads))


def test_bytes_are_convolved_the_fast_ways() -> None:
    """What these tests are for: the ways of the dot product are in use."""
    machine = TARGETS[0].host
    assert make_quad_plan(square(32, 96, 3), machine, 9 * 32 * 96, fast=True, offset=False).packed
    assert takes_depthwise(square(16, 16, 3, group=16), machine, fast=True, offset=False)
    clamps = [(-128, 127), (0, 127)]
    case, _ = two_blocks(np.random.default_rng(0), (1, 4, 4, 64), 3, clamps, 15, left=True, dead=0.0)
    made = _Assembly(case.model, machine)
    assert [type(op) for op in fused(made.model, made.can_add)[0]] == [AddedConv2d, AddedConv2d, Lut]


def test_no_instruction_is_left_out() -> None:
    met = {type(op) for _, _, op in everything().owners}
    assert {cls.__name__ for cls in INSTRUCTIONS.values()} == {cls.__name__ for cls in met}


@targets
@pytest.mark.parametrize("shape", [(2, 3, 4, 37), (1, 2, 1, 3), (1, 4, 2, 16)])
def test_an_image_on_its_way_in(target: Target, shape: tuple[int, int, int, int]) -> None:
    """Quantize and Transpose as the one kernel that they become."""
    model = in_arena(test_fusion.image_model(shape, 0.0371, -3, Rounding.HALF_EVEN_F32))
    assert [type(op) for op in fused(model, lambda _: False)[0]] == [QuantizeImage]
    x = (np.random.default_rng(1).integers(-600, 600, shape) / 2 * np.float32(0.0371)).astype(np.float32)
    before = np.full(model.arena_size, 0xA5, np.uint8)
    before[: x.nbytes] = x.reshape(-1).view(np.uint8)
    code = assemble(model, target.host)
    after = run(code, target.cpu, before, bytes(model.constants.data))
    y, want = model.tensors[4], test_fusion.expected(model, x)
    assert np.array_equal(after[y.offset : y.offset + y.nbytes].view(np.int8).reshape(y.shape), want)
    assert np.array_equal(after[: y.offset], before[: y.offset])
    assert (after[y.offset + y.nbytes :] == 0xA5).all()


def in_arena(model: Model) -> Model:
    """The model with its input and its output, in this order, in the arena; what lies between them is not written."""
    x, scale, zero_point, q, y = model.tensors
    first = -(-x.nbytes // 64) * 64
    places = [(x, 0), (q, first), (y, first + -(-q.nbytes // 64) * 64 + 64)]
    x, q, y = (replace(t, storage=Storage.ARENA, offset=o) for t, o in places)
    return replace(model, tensors=(x, scale, zero_point, q, y), arena_size=y.offset + y.nbytes + 64)
