"""The runtime alone, as a device has it: an environment with numpy, flatbuffers, llvmlite, and of ours `hbc_runtime`.

A program that runs here needs neither the compiler nor onnx nor torch.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest

from hbc_runtime import Session, hbm, isa
from hbc_runtime.isa import Scheme
from hbc_runtime.program import Program
from hbc_runtime.types import DType, Quant
from tests.sketch import Sketch

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ("numpy", "flatbuffers", "llvmlite")  # what HOUSE allows the runtime to import
SCRIPT = """
import json, pathlib, sys
import hbc_runtime
import numpy as np

here = pathlib.Path(sys.argv[1])
out = {}
for engine in ("jit", "reference"):
    session = hbc_runtime.Session(here / "m.hbm", engine=engine)
    out[engine] = session.run({"image": np.load(here / "x.npy")})["y"].tolist()
try:
    hbc_runtime.Session(here / "cpu.hbm")
except hbc_runtime.MissingDependency as err:
    out["cpu"] = str(err)
try:
    hbc_runtime.load(b"no program")
except hbc_runtime.HbmError as err:
    out["bad"] = str(err)
out["foreign"] = sorted({"hbc", "onnx", "torch", "onnxruntime", "click", "rich"} & set(sys.modules))
out["file"] = hbc_runtime.__file__
print(json.dumps(out))
"""


def network() -> Program:
    """Float image → quantize → conv → relu'd requantisation → max pool → dequantize."""
    m = Sketch()
    rng = np.random.default_rng(0)
    x = m.input((1, 8, 8, 3), DType.I8, name="image", quant=Quant.per_tensor(0.5))
    parts = [
        m.constant(rng.integers(-50, 50, (4, 3, 3, 3)), DType.I8),
        m.constant(rng.integers(-500, 500, 4), DType.I32),
        m.constant(rng.integers(1 << 14, 1 << 15, 4), DType.I16),
        m.constant(np.zeros(4), DType.I8),
        m.constant(np.full(4, 20), DType.I8),
    ]
    form = {"scheme": Scheme.FORM_A, "clamp_min": 0, "clamp_max": 127}
    acc = m.emit(isa.Conv2d, [x, *parts, -1, -1, -1], (1, 8, 8, 4), DType.I8, pads=(1, 1, 1, 1), **form)
    small = m.emit(isa.MaxPool, [acc], (1, 4, 4, 4), DType.I8, kernel=(2, 2), strides=(2, 2))
    border = [m.constant([0.25], DType.F32), m.constant([0], DType.I32)]
    m.emit(isa.Dequantize, [small, *border], (1, 4, 4, 4), DType.F32, name="y")
    return m.program()


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that holds the runtime and its three requirements."""
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, with_pip=True, symlinks=os.name != "nt")
    found = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    pip = [found, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]
    done = subprocess.run([*pip, *REQUIREMENTS], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        pytest.skip(f"pip cannot install {', '.join(REQUIREMENTS)} here: {last}")
    where = [found, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip())
    shutil.copytree(ROOT / "runtime", site / "hbc_runtime", ignore=shutil.ignore_patterns("__pycache__"))
    return found


@pytest.mark.slow
def test_the_runtime_needs_three_packages_and_nothing_else(python: Path, tmp_path: Path) -> None:
    program = network()
    x = np.random.default_rng(1).normal(0, 20, (1, 8, 8, 3)).astype(np.float32)
    (tmp_path / "m.hbm").write_bytes(hbm.write(program))
    np.save(tmp_path / "x.npy", x)
    m = Sketch()
    m.cpu([m.input((2,), DType.F32)], [((2,), DType.F32)], b"onnx")
    (tmp_path / "cpu.hbm").write_bytes(hbm.write(m.program()))

    run = [python, "-I", "-c", SCRIPT, tmp_path]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)

    expected = Session(program, engine="reference").run({"image": x})["y"]
    assert np.any(expected != 0)
    assert np.array_equal(out["jit"], expected)
    assert np.array_equal(out["reference"], expected)
    assert "pip install hbc[cpu]" in out["cpu"]
    assert "identifier" in out["bad"]
    assert out["foreign"] == []
    assert str(ROOT) not in out["file"]


def test_this_interpreter_would_notice_a_foreign_import() -> None:
    """The guard above reads `sys.modules`; here it is seen to find something."""
    code = "import sys, json; print(sorted({'json', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['json']"
