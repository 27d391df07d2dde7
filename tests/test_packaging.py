"""What gets installed: every module, the container's schema, nothing else, and under the right names."""

from __future__ import annotations

import configparser
import email
import importlib.metadata
import os
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from pathlib import Path

import pytest

import hbc_runtime

ROOT = Path(__file__).parents[1]
SOURCES = ("hbc", "runtime", "setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in")
NEEDS_SETUPTOOLS = (70, 1)  # the first that builds wheels without another package


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from a copy of the sources (setuptools leaves a build folder), without the index."""
    try:
        version = importlib.metadata.version("setuptools")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("setuptools is not installed, so no wheel can be built without the index")
    if tuple(map(int, version.split(".")[:2])) < NEEDS_SETUPTOOLS:
        pytest.skip(f"setuptools is {version}; building without the index needs 70.1 or newer")
    folder = tmp_path_factory.mktemp("wheel")
    copy_sources(folder / "source")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), "."]
    done = subprocess.run(command, cwd=folder / "source", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def copy_sources(to: Path) -> None:
    """What a wheel is made from; the link `hbc_runtime` is left out, since the mapping must do without it."""
    to.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, to / name)


def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = [n for n in wheel.namelist() if n.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(wheel.read(name))


def source_files(folder: str, package: str) -> set[str]:
    """Names in the wheel of the modules in a source folder."""
    base = ROOT / folder
    return {f"{package}/{p.relative_to(base).as_posix()}" for p in base.rglob("*.py")}


def test_the_link_leads_to_the_runtime() -> None:
    link = ROOT / "hbc_runtime"
    if not link.is_symlink():
        pytest.skip("this checkout has no symbolic links")
    assert link.readlink() == Path("runtime")


@pytest.mark.parametrize("folder", ["hbc", "runtime"])
def test_every_folder_with_modules_is_a_package(folder: str) -> None:
    """setuptools passes over a folder without `__init__.py`; its modules would be missing once installed."""
    folders = {p.parent for p in (ROOT / folder).rglob("*.py")}
    assert [str(f) for f in sorted(folders) if not (f / "__init__.py").exists()] == []


@pytest.mark.slow
def test_wheel_holds_every_module_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    files = {n for n in wheel.namelist() if ".dist-info/" not in n}
    modules = source_files("hbc", "hbc") | source_files("runtime", "hbc_runtime")
    assert {n for n in files if n.endswith(".py")} == modules
    page = {f"hbc/{part}/page.{kind}" for part in ("debug", "perf", "verify") for kind in ("css", "js")}
    data = {"hbc/py.typed", "hbc_runtime/py.typed", "hbc_runtime/hbm/schema.fbs", "hbc/perf/boards.json", *page}
    assert {n for n in files if not n.endswith(".py")} == data


@pytest.mark.slow
def test_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    data = metadata(wheel)
    assert (data["Name"], data["Version"]) == ("hbc", hbc_runtime.__version__)
    assert data["Requires-Python"] == ">=3.10"
    assert data["License"] == "Apache-2.0"


@pytest.mark.slow
def test_plain_install_brings_neither_torch_nor_onnxruntime(wheel: zipfile.ZipFile) -> None:
    requirements = metadata(wheel).get_all("Requires-Dist") or []
    always = {r.split(">")[0] for r in requirements if ";" not in r}
    assert always == {"click", "flatbuffers", "llvmlite", "numpy", "onnx", "rich"}
    extras = {r.split(">")[0]: r.partition("extra == ")[2].strip("\"'") for r in requirements if ";" in r}
    assert extras["torch"] == "torch"
    assert "onnxruntime" in extras


@pytest.mark.slow
def test_wheel_has_the_command(wheel: zipfile.ZipFile) -> None:
    (name,) = [n for n in wheel.namelist() if n.endswith("entry_points.txt")]
    parser = configparser.ConfigParser()
    parser.read_string(wheel.read(name).decode())
    assert dict(parser["console_scripts"]) == {"hbc": "hbc.cli:main"}


@pytest.mark.slow
def test_runtime_works_from_the_wheel(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """Unpacked somewhere else and without the compiler, it imports and reads its own error from a bad file."""
    wheel.extractall(tmp_path, [n for n in wheel.namelist() if n.startswith("hbc_runtime/")])
    code = (
        "import sys, hbc_runtime\n"
        f"assert hbc_runtime.__file__.startswith({str(tmp_path)!r}), hbc_runtime.__file__\n"
        "try:\n    hbc_runtime.load(b'not a program')\n"
        "except hbc_runtime.HbmFormatError as err:\n    print('refused:', err)\n"
        "assert not {'hbc', 'onnx', 'torch'} & set(sys.modules)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("refused:")
