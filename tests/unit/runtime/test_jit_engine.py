"""The engine around the kernels: addresses, segments, sharing, threads, closing, errors."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
import pytest

from hbc_runtime import reference
from hbc_runtime.errors import HbmError
from hbc_runtime.isa import Add, Clamp, Conv2d, Instruction, MaxPool, Minimum, ReduceMax, Reshape, Scheme
from hbc_runtime.jit import JitModel, assembly, build, engine, parts, threads
from hbc_runtime.jit.emitter import mangled
from hbc_runtime.jit.fused import AddedConv2d, QuantizeImage
from hbc_runtime.jit.host import Host, host
from hbc_runtime.jit.registry import Registry
from hbc_runtime.jit.team import JOB, WORDS, Word
from hbc_runtime.program import BpuSegment, Constants, CpuSegment, Model, Segment, Storage, Tensor
from hbc_runtime.types import DType

Array = npt.NDArray[Any]
ROOT = Path(__file__).parents[3]
SIDE, CHANNELS = 24, 32
RESULT = (1, SIDE // 2, SIDE // 2, CHANNELS)


class Network:
    """A model under construction, with the arrays to run it on."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.blob = bytearray()
        self.arena = 0

    def constant(self, value: Array) -> int:
        offset = len(self.blob)
        self.tensors.append(Tensor("w", value.shape, DType.of(value.dtype), Storage.CONSTANT, offset))
        self.blob += value.tobytes() + bytes(-value.nbytes % 64)
        return len(self.tensors) - 1

    def scratch(self, shape: tuple[int, ...], dtype: DType = DType.I8) -> int:
        self.tensors.append(Tensor("t", shape, dtype, Storage.ARENA, self.arena))
        self.arena += -(-self.tensors[-1].nbytes // 64) * 64
        return len(self.tensors) - 1

    def border(self, storage: Storage, index: int, shape: tuple[int, ...], dtype: DType = DType.I8) -> int:
        self.tensors.append(Tensor("b", shape, dtype, storage, index=index))
        return len(self.tensors) - 1

    def conv(self, x: int, out: int, seed: int, kernel: int = 3) -> Conv2d:
        rng = np.random.default_rng(seed)
        c = self.tensors[x].shape[3]
        weight = self.constant(rng.integers(-127, 128, (c, kernel, kernel, c)).astype(np.int8))
        params = [self.constant(np.full(c, v, t)) for v, t in ((20000, np.int16), (0, np.int8), (24, np.int8))]
        pads = (kernel // 2,) * 4
        inputs = (x, weight, -1, *params, -1, -1, -1)
        return Conv2d(
            inputs=inputs,
            outputs=(out,),
            scheme=Scheme.FORM_B,
            clamp_min=-128,
            clamp_max=127,
            pads=pads,
            loc=(f"c{seed}",),
        )

    def model(self, *segments: Sequence[Instruction] | CpuSegment) -> Model:
        made: list[Segment] = [s if isinstance(s, CpuSegment) else BpuSegment("s", tuple(s)) for s in segments]
        blob = Constants(memoryview(bytes(self.blob)))
        return Model("net", (), (), tuple(self.tensors), tuple(made), self.arena, blob)


def run(jit: JitModel, model: Model, inputs: list[Array], outputs: list[Array], segment: int = 0) -> None:
    arena = np.full(model.arena_size + 64, 0x77, np.uint8)
    blob = np.frombuffer(bytes(model.constants.data) + b"\0", np.uint8)
    addresses = [[a.ctypes.data for a in arrays] for arrays in (inputs, outputs)]
    jit.run_segment(segment, arena.ctypes.data, blob.ctypes.data, *addresses)


def by_reference(model: Model, inputs: list[Array], segment: int = 0) -> dict[int, Array]:
    """Every tensor's value after the segment, computed by the reference."""
    values = {i: inputs[t.index] for i, t in enumerate(model.tensors) if t.storage is Storage.INPUT}
    values |= {i: model.constant(i) for i, t in enumerate(model.tensors) if t.storage is Storage.CONSTANT}
    steps = model.segments[segment]
    assert isinstance(steps, BpuSegment)
    for op in steps.instructions:
        ins = [None if i < 0 else values[i] for i in op.inputs]
        (values[op.outputs[0]],) = reference.execute(op, ins, [model.tensors[op.outputs[0]]])
    return values


def a_chain() -> tuple[Model, int]:
    """Convolutions, an add, pools and a reduction, so that big and small kernels take turns; the result's index."""
    net, shape = Network(), (1, SIDE, SIDE, CHANNELS)
    x, a, b, c = net.border(Storage.INPUT, 0, shape), net.scratch(shape), net.scratch(shape), net.scratch(shape)
    (peak, limit), out = (net.scratch((1, 1, 1, CHANNELS)) for _ in range(2)), net.border(Storage.OUTPUT, 0, RESULT)
    add = Add(
        inputs=(a, b), outputs=(c,), scheme=Scheme.FORM_B, lhs_multiplier=20000, rhs_multiplier=-9000, shift=15,
        clamp_min=-128, clamp_max=127,
    )  # fmt: skip
    steps = [
        net.conv(x, a, 1), net.conv(a, b, 2), add, net.conv(c, b, 3, kernel=1), net.conv(b, a, 4),
        ReduceMax(inputs=(a,), outputs=(peak,), axes=(1, 2)),
        Clamp(inputs=(peak,), outputs=(limit,), clamp_min=3, clamp_max=99),
        Minimum(inputs=(a, limit), outputs=(c,)), net.conv(c, a, 5, kernel=1),
        MaxPool(inputs=(a,), outputs=(out,), kernel=(2, 2), strides=(2, 2)),
    ]  # fmt: skip
    return net.model(steps), out


@pytest.fixture(autouse=True)
def enough_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many threads as a test asks for, on machines that have fewer CPUs, too."""
    monkeypatch.setattr(engine, "available_cpus", lambda: 64)


def image(seed: int) -> Array:
    return np.random.default_rng(seed).integers(-128, 128, (1, SIDE, SIDE, CHANNELS)).astype(np.int8)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_every_thread_count_gives_the_references_integers(threads: int) -> None:
    model, out = a_chain()
    jit = build(model, threads)
    for seed in range(20):
        x, y = image(seed), np.zeros(RESULT, np.int8)
        run(jit, model, [x], [y])
        assert np.array_equal(y, by_reference(model, [x])[out])
    jit.close()


@pytest.mark.parametrize("threads", [1, 2])
def test_runs_may_overlap(threads: int) -> None:
    model, out = a_chain()
    expected = [by_reference(model, [image(seed)])[out] for seed in range(4)]
    jit = build(model, threads)

    def many(seed: int) -> list[bool]:
        same = []
        for _ in range(25):
            y = np.zeros(RESULT, np.int8)
            run(jit, model, [image(seed)], [y])
            same.append(np.array_equal(y, expected[seed]))
        return same

    with ThreadPoolExecutor(4) as pool:
        assert all(all(same) for same in pool.map(many, range(4), timeout=60))
    jit.close()


def test_other_python_threads_run_meanwhile() -> None:
    net, shape = Network(), (1, 160, 160, 64)
    x, y, z = net.border(Storage.INPUT, 0, shape), net.border(Storage.OUTPUT, 0, shape), net.scratch(shape)
    steps = [net.conv(x, z, 1), *(net.conv(*pair, 1) for _ in range(40) for pair in ((z, y), (y, z)))]
    model = net.model(steps)
    jit, values = build(model), np.zeros(shape, np.int8)
    worker = threading.Thread(target=run, args=(jit, model, [values], [np.zeros(shape, np.int8)]))
    ticks = 0
    worker.start()
    while worker.is_alive():
        time.sleep(0.001)
        ticks += 1
    assert ticks > 10  # the run takes some 200 ms; with the GIL held there would be one tick or two


def test_segments_are_numbered_as_in_the_model() -> None:
    net = Network()
    x, y, z = (net.border(s, i, (8,)) for s, i in ((Storage.INPUT, 0), (Storage.OUTPUT, 0), (Storage.OUTPUT, 1)))
    low, high = (
        Clamp(inputs=(x,), outputs=(o,), clamp_min=lo, clamp_max=hi) for o, lo, hi in ((y, -128, 0), (z, 0, 127))
    )
    model = net.model([low], CpuSegment("cpu", (), (), b""), [high])
    jit, values = build(model), np.arange(-4, 4, dtype=np.int8)
    first, second = np.full(8, 99, np.int8), np.full(8, 99, np.int8)
    run(jit, model, [values], [first, second], segment=2)
    assert second.tolist() == [0, 0, 0, 0, 0, 1, 2, 3]
    assert (first == 99).all()
    run(jit, model, [values], [first, second], segment=0)
    assert first.tolist() == [-4, -3, -2, -1, 0, 0, 0, 0]


def test_a_reshape_onto_its_own_bytes_costs_nothing() -> None:
    net = Network()
    x = net.scratch((4, 4))
    net.tensors.append(replace(net.tensors[x], shape=(16,)))
    made = assembly._Assembly(net.model([Reshape(inputs=(x,), outputs=(x + 1,))]), host())
    made.finish()
    assert not made.kernels


def test_equal_instructions_share_a_kernel_whatever_their_constants() -> None:
    net, shape = Network(), (1, 8, 8, 16)
    x, y = net.scratch(shape), net.scratch(shape)
    steps = [net.conv(x, y, 1), net.conv(y, x, 2), net.conv(x, y, 3, kernel=1)]
    made = assembly._Assembly(net.model(steps), host())
    made.finish()
    assert len(made.kernels) == 2


def test_a_tensor_with_a_reader_that_knows_no_other_form_is_stored_as_it_is() -> None:
    """`a` is made and read by convolutions, which may store it as q + 128, and by a reduction, which could not tell."""
    net, shape = Network(), (1, SIDE, SIDE, CHANNELS)
    x, a = net.border(Storage.INPUT, 0, shape), net.scratch(shape)
    peak, out = net.border(Storage.OUTPUT, 0, (1, 1, 1, CHANNELS)), net.border(Storage.OUTPUT, 1, shape)
    steps = [net.conv(x, a, 1), ReduceMax(inputs=(a,), outputs=(peak,), axes=(1, 2)), net.conv(a, out, 2)]
    model, results = net.model(steps), [np.zeros((1, 1, 1, CHANNELS), np.int8), np.zeros(shape, np.int8)]
    run(build(model), model, [image(5)], results)
    expected = by_reference(model, [image(5)])
    assert np.array_equal(results[0], expected[peak])
    assert np.array_equal(results[1], expected[out])


def test_small_kernels_stay_on_one_thread_and_large_ones_do_not() -> None:
    model, _ = a_chain()
    made = assembly._Assembly(model, host())
    made.finish()
    is_small = {kernel.function.name.rsplit("_", 1)[0]: kernel.is_small for kernel in made.kernels.values()}
    assert is_small["conv2d"] is False
    assert is_small["clamp"] is True


def test_without_the_helpers_a_run_does_all_the_work() -> None:
    """As in a forked child, where the helper threads do not exist."""
    model, out = a_chain()
    jit = build(model, 2)
    assert jit._pool is not None
    jit._pool._pid = -1
    y = np.zeros(RESULT, np.int8)
    run(jit, model, [image(0)], [y])
    assert np.array_equal(y, by_reference(model, [image(0)])[out])
    jit.close()


def test_a_system_that_starts_no_more_threads_is_an_hbm_error(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(HbmError, match="only 3 of 8 threads could be started"):
        build(a_chain()[0], 8)
    for thread in started:
        thread.join(timeout=10)
        assert not thread.is_alive()


def test_a_run_needs_no_helper_to_come() -> None:
    """The helpers are held up outside their JIT code: the leader does all of the work, and what they do later is
    nothing.
    """
    model, out = a_chain()
    jit = build(model, 3)
    assert jit._pool is not None
    shared = jit._pool._shared
    wait_for(lambda: all(shared.parked[1:]))
    with mock.patch.object(jit._pool, "wake"):
        for seed in range(5):
            y = np.zeros(RESULT, np.int8)
            run(jit, model, [image(seed)], [y])
            assert np.array_equal(y, by_reference(model, [image(seed)])[out])
    assert all(shared.parked[1:])
    assert not jit._pool._presence[1:, 0].any()
    late = y.copy()
    y[:] = 77
    shared.wake[1].put(None)  # finds the last job posted, and nothing left of it
    wait_for(lambda: jit._pool._presence[1, 0] == shared.posted[0])
    wait_for(lambda: shared.parked[1])
    assert (y == 77).all()
    run(jit, model, [image(4)], [y])
    assert np.array_equal(y, late)
    jit.close()


def test_helpers_do_the_work_of_a_leader_that_is_held_up() -> None:
    """The leader posts a job and takes nothing of it: helpers alone finish it."""
    model, out = a_chain()
    jit = build(model, 3)
    assert jit._pool is not None
    x, y = image(3), np.zeros(RESULT, np.int8)
    done = threading.Event()
    lead = jit._lead

    def posts_only(team: int, job: int) -> int:
        words = jit._team[WORDS : WORDS + 8 * JOB].view(np.int64)
        words[:] = (ctypes.c_int64 * JOB).from_address(job)
        jit._pool._shared.posted[0] = words[Word.BASE]
        wait_for(lambda: np.array_equal(y, expected))
        done.set()
        return lead(team, job)

    expected = by_reference(model, [x])[out]
    with mock.patch.object(jit, "_lead", posts_only):
        run(jit, model, [x], [y])
    assert done.is_set()
    assert np.array_equal(y, expected)
    jit.close()


def test_an_idle_model_costs_nothing() -> None:
    """After a run its helpers spin for a while, then sleep until the next one."""
    if not hasattr(time, "pthread_getcpuclockid"):
        pytest.skip("this system has no clock of a thread's CPU time")
    model, out = a_chain()
    before = threading.enumerate()
    jit = build(model, 3)
    clocks = [time.pthread_getcpuclockid(t.ident) for t in threading.enumerate() if t not in before and t.ident]
    assert len(clocks) == 2

    def sleep() -> bool:
        start = [time.clock_gettime(c) for c in clocks]
        time.sleep(0.02)
        return start == [time.clock_gettime(c) for c in clocks]

    for seed in range(3):
        y = np.zeros(RESULT, np.int8)
        run(jit, model, [image(seed)], [y])
        assert np.array_equal(y, by_reference(model, [image(seed)])[out])
        wait_for(sleep)
    jit.close()


def test_no_mask_of_cpus_outlives_a_run() -> None:
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("only Linux has masks of CPUs for threads")
    model, _ = a_chain()
    jit = build(model, 3)
    assert jit._pool is not None
    shared, own = jit._pool._shared, os.sched_getaffinity(0)
    for pause in (0, 0, 0.02, 0.02, 0):
        run(jit, model, [image(0)], [np.zeros(RESULT, np.int8)])
        time.sleep(pause)  # long enough for the helpers to park
    wait_for(lambda: all(shared.parked[1:]))
    assert os.sched_getaffinity(0) == own
    assert [os.sched_getaffinity(i) for i in shared.ids[1:]] == [own, own]
    assert not shared.masks
    jit.close()


def test_runs_at_once_share_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """With four CPUs, a run that wants three while two threads are busy gets two; one for which none is left, one."""
    monkeypatch.setattr(engine, "available_cpus", lambda: 4)
    running = threads._Running()
    assert [running.enter(wanted, 4) for wanted in (2, 3, 3)] == [2, 2, 1]
    for granted in (2, 2, 1):
        running.leave(granted)
    assert running.enter(8, 4) == 4
    assert build(a_chain()[0], 8).threads == 4


@pytest.mark.parametrize("worth", ["small", "large"])
def test_threads_share_what_is_worth_it(monkeypatch: pytest.MonkeyPatch, worth: str) -> None:
    model, out = a_chain()
    shared = assembly.assemble(model, host()).shared
    assert shared > 0
    monkeypatch.setattr(engine, "WORTH", shared + (worth == "small"))
    jit = build(model, 3)
    y = np.zeros(RESULT, np.int8)
    with mock.patch.object(jit, "_lead", wraps=jit._lead) as lead:
        run(jit, model, [image(0)], [y])
    assert np.array_equal(y, by_reference(model, [image(0)])[out])
    assert lead.called == (worth == "large")
    jit.close()


def test_several_samples_are_worth_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = a_chain()
    monkeypatch.setattr(engine, "WORTH", 4 * assembly.assemble(model, host()).work)
    jit = build(model, 2)
    blob = np.frombuffer(bytes(model.constants.data) + b"\0", np.uint8)
    for samples in (3, 4):
        xs, ys = np.stack([image(s) for s in range(samples)]), np.zeros((samples, *RESULT), np.int8)
        arenas = np.zeros((2, model.arena_size), np.uint8)
        tables = [np.array([[a.ctypes.data] for a in arrays]) for arrays in (xs, ys)]
        with mock.patch.object(jit, "_lead", wraps=jit._lead) as lead:
            jit.run_samples(0, (arenas.ctypes.data, arenas.strides[0]), blob.ctypes.data, *tables)
        assert lead.called == (samples == 4)
    jit.close()


def test_a_forked_child_runs_alone() -> None:
    if not hasattr(os, "fork"):
        pytest.skip("no fork on this system")
    model, out = a_chain()
    jit = build(model, 2)
    y = np.zeros(RESULT, np.int8)
    run(jit, model, [image(0)], [y])
    expected = by_reference(model, [image(1)])[out]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork with threads about is what this test is for
        child = os.fork()
    if child == 0:
        status = 1
        try:
            run(jit, model, [image(1)], [y])
            status = 0 if np.array_equal(y, expected) and threads.RUNNING.busy == [] else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    run(jit, model, [image(1)], [y])
    assert np.array_equal(y, expected)
    jit.close()


@pytest.mark.parametrize("state", ["hot", "parked"])
def test_an_interpreter_ends_whatever_its_helpers_do(state: str) -> None:
    code = (
        "import time\n"
        "from tests.unit.runtime.test_jit_engine import *\n"
        "engine.available_cpus, engine.WORTH = lambda: 3, 0\n"
        "model, out = a_chain()\n"
        "jit = build(model, 3)\n"
        "run(jit, model, [image(0)], [np.zeros(RESULT, np.int8)])\n"
        f"time.sleep({0.1 if state == 'parked' else 0})\n"
        "print('done')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert (ran.stdout, ran.stderr) == ("done\n", "")


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_many_runs_in_a_row_and_at_once(count: int) -> None:
    """Hot helpers, late ones and parked ones, with more threads than CPUs."""
    model, out = a_chain()
    expected = [by_reference(model, [image(seed)])[out] for seed in range(3)]
    jit = build(model, count)

    def many(first: int) -> bool:
        good = True
        for n in range(150):
            y = np.zeros(RESULT, np.int8)
            run(jit, model, [image((first + n) % 3)], [y])
            good = good and np.array_equal(y, expected[(first + n) % 3])
            if n % 50 == 49:
                time.sleep(0.01)
        return good

    assert many(0)
    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(many, range(3), timeout=120))
    assert threads.RUNNING.busy == []
    jit.close()


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("samples", [1, 2, 5, 16])
def test_samples_in_one_call(count: int, samples: int) -> None:
    model, out = a_chain()
    jit = build(model, count)
    xs = np.stack([image(seed) for seed in range(samples)])
    blob = np.frombuffer(bytes(model.constants.data) + b"\0", np.uint8)
    for fill in (0x11, 0xEE):
        arenas = np.full((jit.threads, model.arena_size + 64), fill, np.uint8)
        ys = np.zeros((samples, *RESULT), np.int8)
        rows = [np.array([[a.ctypes.data] for a in arrays]) for arrays in (xs, ys)]
        jit.run_samples(0, (arenas.ctypes.data, arenas.strides[0]), blob.ctypes.data, *rows)
        for x, y in zip(xs, ys, strict=True):
            assert np.array_equal(y, by_reference(model, [x])[out])
    jit.close()


def test_closing_ends_the_helper_threads_and_later_runs_say_so() -> None:
    model, _ = a_chain()
    before = threading.enumerate()  # among them, perhaps, threads of other tests that are about to end
    jit = build(model, 3)
    helpers = [t for t in threading.enumerate() if t not in before]
    assert len(helpers) == 2
    jit.close()
    jit.close()
    wait_for(lambda: not any(t.is_alive() for t in helpers))
    with pytest.raises(HbmError, match="closed"):
        run(jit, model, [image(0)], [np.zeros(RESULT, np.int8)])


def test_dropping_the_model_ends_the_helper_threads() -> None:
    before = threading.enumerate()
    jit = build(a_chain()[0], 2)
    (helper,) = [t for t in threading.enumerate() if t not in before]
    del jit
    wait_for(lambda: not helper.is_alive())


def wait_for(condition: Any) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_fewer_than_one_thread_is_refused() -> None:
    with pytest.raises(ValueError, match="threads is 0"):
        build(a_chain()[0], 0)


def test_an_instruction_without_a_kernel_is_named_with_its_source() -> None:
    kernels = {cls: rule for cls, rule in assembly.KERNELS.kernels.items() if cls is not Conv2d}
    with (
        mock.patch.object(assembly, "KERNELS", Registry(kernels, assembly.KERNELS.packings)),
        pytest.raises(HbmError, match=r"cannot compile conv2d \(from c1\)"),
    ):
        build(a_chain()[0])


def test_every_instruction_has_a_kernel() -> None:
    assert set(assembly.KERNELS.kernels) - {QuantizeImage, AddedConv2d} == set(reference.RULES)


def test_the_same_network_compiles_for_a_64_bit_arm() -> None:
    """No such machine is at hand: code generation alone says that nothing x86 is left in the module."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    arm = Host("aarch64-unknown-linux-gnu", "neoverse-n1", "", lanes=4, registers=32, x86=False)
    made = assembly._Assembly(a_chain()[0], arm)
    with mock.patch.object(parts, "target_machine", side_effect=StopIteration), pytest.raises(StopIteration):
        made.finish()  # everything but code generation for this machine
    machine = llvm.Target.from_triple(arm.triple).create_target_machine(cpu=arm.cpu, opt=2)
    made.parts.module.data_layout = str(machine.target_data)
    code = machine.emit_assembly(llvm.parse_assembly(str(made.parts.module)))
    assert "entry_0" in code
    assert "smlal" in code or "smull" in code


def test_types_are_named_as_llvm_names_them() -> None:
    from llvmlite import ir

    names = [mangled(t) for t in (ir.IntType(32), ir.VectorType(ir.IntType(8), 64), ir.VectorType(ir.DoubleType(), 8))]
    assert names == ["i32", "v64i8", "v8f64"]
