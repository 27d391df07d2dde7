"""Small models with one kind of fault each, in ONNX's own arithmetic: `build()` gives inputs and expected outputs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
import warnings
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest

import hbc
from hbc.diagnostics import HbcError
from hbc.frontend import load
from hbc_runtime import Session
from tests.shared_data import SHARED, shared

CASES = SHARED / "cases"
NAMES = sorted(p.stem for p in CASES.glob("case_*.py"))
SECONDS, MEGABYTES = 2.0, 500  # what a malformed file may take


@lru_cache(maxsize=1)
def _helpers() -> ModuleType:
    return _module(shared("cases", "_common.py"), "_common")


def case(name: str) -> Any:
    """The case as a module."""
    sys.modules.setdefault("_common", _helpers())
    return _module(shared("cases", f"{name}.py"), f"hbc_{name}")


def _module(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", NAMES or ["(none)"])
def test_case(name: str) -> None:
    """The outputs that the case states, within its tolerance; a `reject` case is refused with an explained error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit, in cases that trace
        try:
            model, feeds, expected, tolerance, about = case(name).build()
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            pytest.skip("a TorchScript model, whose making and reading need PyTorch")
    if tolerance == "reject":
        with pytest.raises(HbcError) as caught:
            hbc.compile(model, arith="onnx")
        assert_explained(str(caught.value))
        return
    given: dict[str, Any] = {"shapes": {k: v.shape for k, v in feeds.items()}}
    if not isinstance(model, onnx.ModelProto):  # a ScriptModule, which names neither sizes nor outputs
        given = {"example": feeds, "output_names": list(expected)}
    program = hbc.compile(model, arith="onnx", **given).program
    with Session(program) as session:
        got = session.run(feeds)
    assert set(got) == set(expected)
    for output, want in expected.items():
        assert (got[output].shape, got[output].dtype) == (want.shape, want.dtype), about
        most = limit(tolerance, want)
        apart = np.abs(got[output].astype(np.float64) - want.astype(np.float64))
        assert float(apart.max(initial=0.0)) <= most, f"{output}: {about}"


def limit(tolerance: str, want: np.ndarray) -> float:
    """The largest difference that a tolerance allows: `exact`, `abs:v`, `rel:v` (of the largest), `lsb:n@scale`."""
    kind, _, value = tolerance.partition(":")
    if kind == "exact":
        return 0.0
    if kind == "lsb":
        count, scale = value.split("@")
        return float(count) * float(scale) * (1 + 1e-5)
    return float(value) * {"abs": 1.0, "rel": float(np.abs(want.astype(np.float64)).max(initial=0.0))}[kind]


def test_external_data(tmp_path: Path) -> None:
    """case_57 saved with its weights in a folder beside it: the same integers; elsewhere or missing: refused."""
    module = case("case_57")
    _, feeds, expected, _, _ = module.build()
    path = saved(module, tmp_path)
    with Session(hbc.compile(path, arith="onnx").program) as session:
        np.testing.assert_array_equal(session.run(feeds)["y"], expected["y"])
    (tmp_path / "sub dir" / "w.bin").unlink()
    with pytest.raises(HbcError) as caught:
        hbc.compile(path)
    assert_explained(str(caught.value))
    assert "w.bin" in str(caught.value)
    elsewhere = tmp_path / "inner"
    elsewhere.mkdir()
    path = saved(module, elsewhere, location="../w.bin")
    with pytest.raises(HbcError) as caught:
        hbc.compile(path)
    assert_explained(str(caught.value))


def saved(module: Any, folder: Path, **where: str) -> Path:
    """The case's model file in `folder`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the case leaves its files to be closed by the collector
        return Path(module.save(str(folder), **where))


def bad_files() -> list[str]:
    """The names of case_58's files; none where the cases are not here."""
    return sorted(case("case_58").bad_files()) if (CASES / "case_58.py").exists() else []


@pytest.mark.parametrize("name", bad_files() or ["(none)"])
def test_bad_file(name: str) -> None:
    """Each malformed file is an explained error, at once."""
    data = case("case_58").bad_files()[name]
    start = time.perf_counter()
    with pytest.raises(HbcError) as caught:
        load(data)
    assert time.perf_counter() - start < SECONDS
    assert_explained(str(caught.value))


_ALL_BAD = """
import sys
from hbc.diagnostics import HbcError
from hbc.frontend import load
for path in sys.argv[1:]:
    try:
        load(path)
    except HbcError:
        continue
    sys.exit(f"{path} was taken")
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(int(status["VmHWM"].split()[0]) // 1024)  # of this program alone: ru_maxrss counts the parent's memory, too
"""


def test_bad_files_take_little_memory(tmp_path: Path) -> None:
    """All of them in one process of their own: its peak stays below the limit."""
    shared("cases", "case_58.py")
    if not Path("/proc/self/status").exists():
        pytest.skip("the peak of a process is read from /proc")
    paths = []
    for name, data in case("case_58").bad_files().items():
        paths.append(tmp_path / f"{name}.onnx")
        paths[-1].write_bytes(data)
    run = subprocess.run(
        [sys.executable, "-c", _ALL_BAD, *map(str, paths)], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < MEGABYTES, f"peak of {run.stdout} MB"


def assert_explained(message: str) -> None:
    """A first line that says what, a place, and no Python names."""
    lines = message.splitlines()
    assert len(lines) >= 2, message
    assert "-->" in message, message
    assert "Traceback" not in message
    assert "Error(" not in message


def test_the_cases_are_here() -> None:
    shared("cases")
    assert len(NAMES) == 49
    assert len(bad_files()) == 23
