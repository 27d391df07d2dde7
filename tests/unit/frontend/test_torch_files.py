"""PyTorch files: which are taken, and what is said of the others. No pickle is ever run."""

from __future__ import annotations

import io
import pickle
import struct
import subprocess
import sys
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hbc.diagnostics import FrontendError, OptionError
from hbc.example import parse_example
from hbc.frontend import load
from hbc.frontend.files import ModelFile
from hbc.frontend.torch_files import open_file
from tests.torch_scripts import Nested, TwoInputs
from tests.torch_sketch import Net, export, saved, script, stored, torch, trace

pytestmark = pytest.mark.torch
nn = torch.nn
X = torch.zeros(1, 3, 4, 4)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 1)

    def forward(self, x: Any) -> Any:
        return self.conv(x)


def packed(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(name.replace("__", "/"), data)
    return buffer.getvalue()


def exported(model: Any, *inputs: Any) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(export(model, *inputs), buffer)
    return buffer.getvalue()


def refusal(path: Path, data: bytes, *examples: str, **options: Any) -> str:
    """What is said of a file with these bytes."""
    path.write_bytes(data)
    start = time.perf_counter()
    with pytest.raises((FrontendError, OptionError)) as caught:
        load(path, examples=[parse_example(e) for e in examples or ("1x3x4x4",)], **options)
    assert time.perf_counter() - start < 10
    text = str(caught.value)
    assert path.name in text
    assert "Traceback" not in text
    return text


SCRIPT = saved(trace(Small(), X))
PROGRAM = exported(Small(), X)
FOREIGN: dict[str, tuple[Callable[[], bytes], str]] = {
    "cut in half": (lambda: SCRIPT[: len(SCRIPT) // 2], "the file is damaged"),
    "cut at the end": (lambda: SCRIPT[:-20], "the file is damaged"),
    "an exported program, cut": (lambda: PROGRAM[:-500], "the file is damaged"),
    "one byte wrong": (lambda: flipped(SCRIPT), "the file is damaged"),
    "empty": (lambda: b"", "the file is empty"),
    "a text": (lambda: b"hello", "this is no PyTorch file"),
    "a state dict": (lambda: stored(Small().state_dict()), "state dict"),
    "a checkpoint": (lambda: stored({"model": Small().state_dict(), "epoch": 3}), "state dict"),
    "a whole module": (lambda: stored(Small()), "a whole nn.Module"),
    "an old pickle": (lambda: stored({}, _use_new_zipfile_serialization=False), "hbc runs no pickles"),
    "NumPy's arrays": (lambda: packed(**{"a.npy": b""}), "NumPy arrays"),
    "a package": (lambda: packed(**{"p__.data__extern_modules": b""}), "torch.package"),
    "another archive": (lambda: packed(**{"a.txt": b""}), "a zip archive of something else"),
    "ONNX": (lambda: b"\x08\x0a\x12\x00", "it is an ONNX model"),
}


def flipped(data: bytes) -> bytes:
    """One byte of the code wrong. (PyTorch pads its archives: a byte between two members means nothing.)"""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        code = next(m for m in archive.infolist() if m.filename.endswith(".py"))
    name, extra = struct.unpack_from("<HH", data, code.header_offset + 26)
    changed = bytearray(data)
    changed[code.header_offset + 30 + name + extra + code.compress_size // 2] ^= 255
    return bytes(changed)


@pytest.mark.parametrize("what", FOREIGN)
def test_what_is_no_torchscript_is_told_by_what_it_is(what: str, tmp_path: Path) -> None:
    make, words = FOREIGN[what]
    assert words in refusal(tmp_path / "model.pt", make())


def test_truncation_anywhere_is_an_explained_error(tmp_path: Path) -> None:
    for data, name in ((SCRIPT, "m.pt"), (PROGRAM, "m.pt2")):
        for share in range(1, 20):
            refusal(tmp_path / name, data[: len(data) * share // 20])


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(Evil.path), "w"))

    path = Path("never")


def test_pickles_within_an_exported_program_are_not_run(tmp_path: Path) -> None:
    Evil.path = tmp_path / "was-run"
    code = pickle.dumps(Evil(), protocol=2)
    assert torch.load is not None
    with zipfile.ZipFile(io.BytesIO(PROGRAM)) as archive:
        members = {n: archive.read(n) for n in archive.namelist()}
    sample = next(n for n in members if "sample_inputs" in n)
    folder = sample.split("/", maxsplit=1)[0]
    for name in (sample, f"{folder}/data/constants/custom_obj_0", f"{folder}/data/weights/other"):
        data = repacked({**members, name: code})
        assert "hbc runs no pickles" in refusal(tmp_path / "m.pt2", data)
    assert not Evil.path.exists()
    pickle.loads(code).close()  # it would have left a file
    assert Evil.path.exists()


def repacked(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def test_machine_code_and_sizes_that_are_no_arithmetic_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(PROGRAM)) as archive:
        members = {n: archive.read(n) for n in archive.namelist()}
    folder = next(iter(members)).split("/", maxsplit=1)[0]
    compiled = repacked({**members, f"{folder}/data/aotinductor/model/lib.so": b"\x7fELF"})
    assert "machine code" in refusal(tmp_path / "m.pt2", compiled)
    for size in ("__import__('os').getcwd()", "exit()", "s0 + open('s0')", "s0.__class__", "(lambda: 1)()"):
        text = f'{{"a": {{"expr_str": "{size}"}}}}'.encode()
        sizes = repacked({**members, f"{folder}/models/other.json": text})
        assert "no arithmetic" in refusal(tmp_path / "m.pt2", sizes)


def test_an_unknown_operator_of_an_exported_program_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(PROGRAM)) as archive:
        members = {n: archive.read(n) for n in archive.namelist()}
    name = next(n for n in members if n.endswith("models/model.json"))
    members[name] = members[name].replace(b"torch.ops.aten.conv2d.default", b"torch.ops.mine.conv.default")
    text = refusal(tmp_path / "m.pt2", repacked(members))
    assert "mine::conv" in text
    assert "import the package" in text


def test_bytes_and_objects_are_taken_as_files_are(tmp_path: Path) -> None:
    (tmp_path / "m.pt").write_bytes(SCRIPT)
    one = [parse_example("1x3x4x4")]
    traced = trace(Small(), X)
    for source in (tmp_path / "m.pt", str(tmp_path / "m.pt"), SCRIPT, traced, PROGRAM, export(Small(), X)):
        module = load(source, examples=one)
        assert [a.name for a in module.graph.args] == ["x"]
        assert [o.name for o in module.graph.outputs] == ["output"]
        assert module.metadata["sha256"]
    (tmp_path / "renamed.bin").write_bytes(SCRIPT)
    assert load(tmp_path / "renamed.bin", examples=one).graph.outputs[0].name == "output"


def test_a_module_that_is_neither_traced_nor_exported_is_explained() -> None:
    with pytest.raises(FrontendError) as caught:
        load(Small(), examples=[parse_example("1x3x4x4")])
    assert "torch.jit.trace" in str(caught.value)


# ---- examples


TWO = saved(script(TwoInputs()))


def test_examples_go_by_name_and_by_place() -> None:
    for given in (["1x3", "1x4:i64"], ["ids=1x4:i64", "1x3"], ["ids=1x4:i64", "image=1x3"]):
        module = load(TWO, examples=[parse_example(e) for e in given])
        assert [(a.name, a.type.shape, a.type.dtype.text) for a in module.graph.args] == [
            ("image", (1, 3), "f32"),
            ("ids", (1, 4), "i64"),
        ]
        assert [o.name for o in module.graph.outputs] == ["a", "b"]


def test_shapes_stand_for_examples() -> None:
    module = load(SCRIPT, {"x": (2, 3, 5, 5)})
    assert module.graph.args[0].type.shape == (2, 3, 5, 5)


@pytest.mark.parametrize(
    ("data", "examples", "words"),
    [
        (SCRIPT, [], "--example x=1x3x224x224"),
        (TWO, ["1x3"], "--example ids="),
        (TWO, ["1x3", "idz=1x4"], "did you mean 'ids'?"),
        (TWO, ["1x3", "1x4", "scaled=1"], "an input is no tensor"),
        (TWO, ["1x3", "1x4", "1x5"], "no input for the example 1x5"),
        (SCRIPT, ["1x3x4x4", "1x3"], "no input for the example 1x3"),
        (SCRIPT, ["1x4x4x4"], "PyTorch can't run this on the example"),
        (PROGRAM, ["1x3x5x5"], "the model was exported for 1x3x4x4"),
        (PROGRAM, ["1x3x4x4:i64"], "the model takes f32"),
    ],
    ids=range(9),
)
def test_missing_and_wrong_examples_are_explained(data: bytes, examples: list[str], words: str) -> None:
    with pytest.raises(FrontendError) as caught:
        load(data, examples=[parse_example(e) for e in examples])
    assert words in str(caught.value)


def test_a_list_of_lists_is_no_input() -> None:
    with pytest.raises(FrontendError) as caught:
        load(saved(script(Nested())), examples=[parse_example("1x3")])
    assert "List[List[Tensor]]" in str(caught.value)


def test_output_names_are_the_users() -> None:
    one = [parse_example("1x3x4x4")]
    assert load(SCRIPT, examples=one, output_names=["y"]).graph.outputs[0].name == "y"
    with pytest.raises(OptionError) as caught:
        load(SCRIPT, examples=one, output_names=["a", "b"])
    assert "the model has 1: 'output'" in str(caught.value)


def test_an_open_size_of_an_exported_program_takes_an_example() -> None:
    x = torch.zeros(2, 3, 4, 4)
    with torch.no_grad():
        batch = torch.export.Dim("batch", min=1, max=64)
        program = torch.export.export(Small().eval(), (x,), dynamic_shapes=({0: batch},))
    with pytest.raises(FrontendError) as caught:
        load(program)
    assert "--example x=Nx3x4x4" in str(caught.value)
    assert load(program, examples=[parse_example("5x3x4x4")]).graph.outputs[0].value.type.shape == (5, 2, 4, 4)


def test_examples_belong_to_pytorch() -> None:
    with pytest.raises(OptionError) as caught:
        load(b"\x08\x0a", examples=[parse_example("1x3")])
    assert "belongs to PyTorch's models" in str(caught.value)


def test_without_pytorch_the_error_says_how_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "m.pt").write_bytes(SCRIPT)
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from hbc.diagnostics import FrontendError\nfrom hbc.frontend import load\n"
        "try:\n    load(sys.argv[1])\nexcept FrontendError as error:\n    print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "m.pt")], capture_output=True, text=True, check=False, timeout=60
    )
    assert "pip install hbc[torch]" in run.stdout, run.stderr


def test_reading_a_file_leaves_pytorch_as_it_was(tmp_path: Path) -> None:
    grad, threads = torch.is_grad_enabled(), torch.get_num_threads()
    state = torch.get_rng_state()
    load(SCRIPT, examples=[parse_example("1x3x4x4")])
    assert (torch.is_grad_enabled(), torch.get_num_threads()) == (grad, threads)
    assert torch.equal(torch.get_rng_state(), state)
    assert np.isfinite(Net(lambda x: x)(X).numpy()).all()


# ---- packed weights


@pytest.mark.parametrize("shape", [(1, 64, 2, 2), (1, 64, 2, 2, 2)])
def test_products_of_converted_models_do_not_saturate(shape: tuple[int, ...]) -> None:
    """The opened module sums 255 · 127 and −255 · 127 exactly on every CPU, and PyTorch's engine stays as it was."""
    quantised = pytest.importorskip("torch.ao.nn.quantized", reason="this PyTorch converts no models any more")
    weight = torch.full((1, *shape[1:2], *[1] * (len(shape) - 2)), 127.0)
    weight[:, -2:] = -127.0  # the sum of the others is 60 pairs'
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        conv = (quantised.Conv2d if len(shape) == 4 else quantised.Conv3d)(64, 1, 1)
        conv.set_weight_bias(torch.quantize_per_tensor(weight, 1.0, 0, torch.qint8), None)
        conv.scale = 255.0 * 127
        traced = trace(
            Net(lambda x, m: m(torch.quantize_per_tensor(x, 1.0, 0, torch.quint8)).dequantize(), conv),
            torch.zeros(shape),
        )
    before = torch.backends.quantized.engine
    opened = open_file(torch, ModelFile("conv.pt", saved(traced), None))
    assert torch.backends.quantized.engine == before
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = opened.module(torch.full(shape, 255.0))
    assert torch.equal(got / (255 * 127), torch.full((1, 1, *shape[2:]), 60.0))


def test_what_qnnpack_cannot_pack_is_opened_by_the_default_engine() -> None:
    """Dynamic linear layers of float16 weights: another model that PyTorch has converted."""
    pytest.importorskip("torch.ao.quantization", reason="this PyTorch converts no models any more")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 2)), {nn.Linear}, torch.float16)
        data = saved(trace(net, torch.ones(1, 4)))
    before = torch.backends.quantized.engine
    opened = open_file(torch, ModelFile("half.pt", data, None))
    assert torch.backends.quantized.engine == before
    assert torch.equal(opened.module(torch.ones(1, 4)), net(torch.ones(1, 4)))
