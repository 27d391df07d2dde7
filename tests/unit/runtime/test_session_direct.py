"""The short way through a run: which inputs take it, that all others take the long one, and that results are equal."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray

from hbc_runtime import HbmError, Session, isa
from hbc_runtime.errors import InputMismatch
from hbc_runtime.program import Program, Quant
from hbc_runtime.types import DType
from tests.sketch import Sketch

Array = NDArray[Any]
SHAPE = (2, 3, 4)


def network() -> Program:
    """Two inputs, one of them quantised; two outputs."""
    m = Sketch()
    x = m.input(SHAPE, DType.I8, name="x", quant=Quant.per_tensor(0.5, 0))
    z = m.input(SHAPE, DType.I16, name="z")
    m.emit(isa.Clamp, [x], SHAPE, DType.I8, name="y", clamp_min=-5, clamp_max=6)
    m.emit(isa.Clamp, [z], SHAPE, DType.I16, name="w", clamp_min=-500, clamp_max=600)
    return m.program()


def image(seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-128, 128, SHAPE).astype(np.int8)


def words(seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-1000, 1000, SHAPE).astype(np.int16)


def misaligned() -> Array:
    room = np.zeros(2 * image().size + 1, np.uint8)
    inside = room[1:].view(np.int16).reshape(SHAPE)
    inside[:] = words()
    return inside


class Own(np.ndarray[Any, Any]):
    pass


def read_only() -> Array:
    x = image()
    x.flags.writeable = False
    return x


TAKE_IT: dict[str, Callable[[], dict[str, Array]]] = {
    "as they are": lambda: {"x": image(), "z": words()},
    "in another order": lambda: {"z": words(), "x": image()},
    "read only": lambda: {"x": read_only(), "z": words()},
    "a part that is dense": lambda: {"x": np.concatenate([image(), image()])[:2], "z": words()},
}
FIT_OTHERWISE: dict[str, Callable[[], Any]] = {
    "columns first": lambda: {"x": np.asfortranarray(image()), "z": words()},
    "every second": lambda: {"x": np.repeat(image(), 2, axis=2)[:, :, ::2], "z": words()},
    "backwards": lambda: {"x": image()[::-1].copy()[::-1], "z": words()},
    "big-endian": lambda: {"x": image(), "z": words().astype(">i2")},
    "between words": lambda: {"x": image(), "z": misaligned()},
    "floats": lambda: {"x": image() * np.float32(0.5), "z": words()},
    "a class of its own": lambda: {"x": image().view(Own), "z": words()},
    "lists": lambda: {"x": (image() * 0.5).tolist(), "z": words()},
}
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "a missing one": (lambda: {"x": image()}, "input 'z' is missing"),
    "an unknown one": (lambda: {"x": image(), "z": words(), "v": words()}, "no input 'v'"),
    "a misspelt one": (lambda: {"x": image(), "zz": words()}, "did you mean 'z'"),
    "a turned one": (lambda: {"x": image().reshape(3, 2, 4), "z": words()}, "'x' does not fit: it has shape"),
    "a flat one": (lambda: {"x": image().reshape(-1), "z": words()}, "'x' does not fit: it has shape"),
    "a wider one": (lambda: {"x": words(), "z": words()}, "'x' does not fit: it has dtype int16"),
    "one without sign": (lambda: {"x": image(), "z": words().view(np.uint16)}, "'z' does not fit: it has dtype uint16"),
    "no dict": (lambda: [image(), words()], "takes a dict"),
}


def long_way(session: Session) -> Any:
    """Counts the runs that take the long way."""
    return mock.patch.object(session._engine, "run", wraps=session._engine.run)


@pytest.mark.parametrize("inputs", TAKE_IT.values(), ids=TAKE_IT)
def test_what_fits_takes_the_short_way(inputs: Callable[[], dict[str, Array]]) -> None:
    with Session(network()) as session, long_way(session) as taken:
        first = session.run(inputs())
        again = session.run(inputs())
    assert not taken.called
    for found in (first, again):
        assert list(found) == ["y", "w"]
        assert np.array_equal(found["y"], image().clip(-5, 6))
        assert np.array_equal(found["w"], words().clip(-500, 600))
        assert (found["y"].dtype, found["w"].dtype) == (np.int8, np.int16)
    assert not np.shares_memory(first["y"], again["y"])


@pytest.mark.parametrize("inputs", FIT_OTHERWISE.values(), ids=FIT_OTHERWISE)
def test_what_has_to_be_changed_takes_the_long_way(inputs: Callable[[], Any]) -> None:
    with Session(network()) as session, long_way(session) as taken:
        session.run({"x": image(1), "z": words(1)})
        found = session.run(inputs())
        assert taken.call_count == 1
        assert np.array_equal(found["y"], image().clip(-5, 6))
        assert np.array_equal(found["w"], words().clip(-500, 600))
        assert len(session._engine.runs.frames) == 1  # type: ignore[attr-defined]  # given back where it wasn't used


@pytest.mark.parametrize(("inputs", "why"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_refused_as_ever(inputs: Callable[[], Any], why: str) -> None:
    with Session(network()) as session:
        session.run({"x": image(), "z": words()})
        with pytest.raises(InputMismatch, match=why):
            session.run(inputs())
        assert np.array_equal(session.run({"x": image(), "z": words()})["y"], image().clip(-5, 6))


def test_several_batches_take_the_long_way() -> None:
    xs, zs = np.concatenate([image(0), image(1)]), np.concatenate([words(0), words(1)])
    with Session(network()) as session, long_way(session) as taken:
        found = session.run({"x": xs, "z": zs})
    assert taken.call_count == 1
    assert np.array_equal(found["y"], xs.clip(-5, 6))


@pytest.mark.parametrize("threads", [1, 2])
def test_runs_at_once_have_frames_of_their_own(threads: int) -> None:
    with Session(network(), threads=threads) as session, ThreadPoolExecutor(6) as pool:

        def one(seed: int) -> bool:
            found = session.run({"x": image(seed), "z": words(seed)})
            return np.array_equal(found["y"], image(seed).clip(-5, 6)) and np.array_equal(
                found["w"], words(seed).clip(-500, 600)
            )

        assert all(pool.map(one, range(300)))
        assert 1 <= len(session._engine.runs.frames) <= 6  # type: ignore[attr-defined]


def test_a_closed_session_does_not_run_the_short_way_either() -> None:
    session = Session(network())
    session.run({"x": image(), "z": words()})
    session.close()
    with pytest.raises(HbmError, match="session is closed"):
        session.run({"x": image(), "z": words()})
    assert session._engine.runs.frames == []  # type: ignore[attr-defined]


def test_a_run_that_fails_gives_its_frame_up() -> None:
    def fails(_: object) -> None:
        raise MemoryError("none")

    with Session(network()) as session:
        session.run({"x": image(), "z": words()})
        failing = mock.patch.object(session._engine.runs._jit, "run_job", fails)  # type: ignore[attr-defined]
        with failing, pytest.raises(HbmError, match=r"more memory than this machine has \(none\)"):
            session.run({"x": image(), "z": words()})
        assert session._engine.runs.frames == []  # type: ignore[attr-defined]
        assert session._running == []
        assert np.array_equal(session.run({"x": image(), "z": words()})["y"], image().clip(-5, 6))
