"""Machine code in several object files: the same results, the same files each time, and nothing left behind."""

from __future__ import annotations

import threading
from unittest import mock

import numpy as np
import pytest

from hbc_runtime.errors import NoKernel
from hbc_runtime.isa import Clamp
from hbc_runtime.jit import JitModel, assembly, build, parts
from hbc_runtime.jit.host import host
from hbc_runtime.jit.registry import Registry
from tests.unit.runtime.test_jit_engine import a_chain, by_reference, image, run


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module per kernel."""
    monkeypatch.setattr(parts, "ENOUGH", 1)


def result(jit: JitModel) -> list[np.ndarray]:
    model, out = a_chain()
    y = np.zeros(model.tensors[out].shape, np.int8)
    run(jit, model, [image(3)], [y])
    return [y]


@pytest.mark.parametrize("threads", [1, 2])
def test_the_results_are_the_same(in_pieces: None, threads: int) -> None:
    model, out = a_chain()
    (got,) = result(build(model, threads))
    assert np.array_equal(got, by_reference(model, [image(3)])[out])


def test_there_is_an_object_per_kernel_and_always_the_same(in_pieces: None) -> None:
    model, _ = a_chain()
    first, second = (assembly.assemble(model, host()) for _ in range(2))
    assert len(first.objects) > 1
    assert first.objects == second.objects


def test_a_small_model_is_one_object_and_takes_no_thread() -> None:
    with mock.patch.object(parts, "ThreadPoolExecutor", side_effect=AssertionError("a thread")):
        assert len(assembly.assemble(a_chain()[0], host()).objects) == 1


def test_a_failure_leaves_no_thread_behind(in_pieces: None) -> None:
    def fail(*_: object) -> None:
        msg = "no such thing"
        raise ValueError(msg)

    kernels = {**assembly.KERNELS.kernels, Clamp: fail}
    patched = mock.patch.object(assembly, "KERNELS", Registry(kernels, assembly.KERNELS.packings))
    with patched, pytest.raises(NoKernel, match="no such thing"):
        assembly.assemble(a_chain()[0], host())
    assert not [t for t in threading.enumerate() if t.name.startswith("hbc-codegen")]


def test_an_error_of_llvm_is_not_lost(in_pieces: None) -> None:
    with (
        mock.patch.object(parts.Parts, "_make", side_effect=RuntimeError("no code")),
        pytest.raises(RuntimeError, match="no code"),
    ):
        assembly.assemble(a_chain()[0], host())
