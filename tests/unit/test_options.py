"""Options are checked once, and say what would do."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from hbc.diagnostics import OptionError
from hbc.ir.semantics import MARCHES
from hbc.options import CompileOptions, march_named, parse_shape, pick


def test_nash_means_nash_e() -> None:
    assert CompileOptions(march="nash").march == "nash-e"
    assert CompileOptions() == CompileOptions(march="nash-e")


@pytest.mark.parametrize("march", MARCHES)
def test_every_march_is_taken_as_it_is(march: str) -> None:
    assert march_named(march) == march


def test_an_unknown_march_is_answered_with_the_nearest_and_the_list() -> None:
    with pytest.raises(OptionError) as caught:
        CompileOptions(march="bays-e")
    text = str(caught.value)
    assert "there is no march 'bays-e'" in text
    assert "did you mean 'bayes-e'?" in text
    assert all(m in text for m in MARCHES)


def test_an_unlike_march_is_answered_with_the_list_alone() -> None:
    with pytest.raises(OptionError, match="one of bernoulli2, bayes"):
        CompileOptions(march="x86")


def test_an_unknown_arithmetic_is_refused() -> None:
    with pytest.raises(OptionError, match="there is no arithmetic 'float'"):
        CompileOptions(arith="float")


def test_an_unknown_keyword_is_an_option_error_with_the_nearest() -> None:
    with pytest.raises(OptionError, match="did you mean 'shapes'"):
        CompileOptions.of(shape={"x": (1, 3)})


def test_shapes_may_be_a_mapping_of_any_sequences() -> None:
    options = CompileOptions(shapes={"x": [1, 3, 8, 8], "y": ()})
    assert options.shape_map == {"x": (1, 3, 8, 8), "y": ()}
    assert options == CompileOptions(shapes=(("x", (1, 3, 8, 8)), ("y", ())))
    assert hash(options) == hash(dataclasses.replace(options))


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"x": (0, 3)}, "every size must be 1 or more"),
        ({"x": (-1, 3)}, "every size must be 1 or more"),
        ({"x": "abc"}, "give a sequence of sizes"),
        ({"x": 7}, "give a sequence of sizes"),
        ({3: (1,)}, "shapes go by input name"),
        ((("x", (1, 2)), ("x", (1, 3))), "given two shapes, 1x2 and 1x3"),
    ],
)
def test_impossible_shapes_are_refused(shapes: object, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        CompileOptions(shapes=shapes)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["strict", "cpu_fallback"])
def test_a_switch_is_a_bool(field: str) -> None:
    with pytest.raises(OptionError, match=f"{field} is 'yes'"):
        CompileOptions.of(**{field: "yes"})


@pytest.mark.parametrize("name", [" ", "", "a\udcff"])  # the last is what a command line makes of the byte 0xff
def test_a_name_is_text_that_can_be_written(name: str) -> None:
    with pytest.raises(OptionError, match="name is '"):
        CompileOptions(name=name)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("image=1x3x224x224", ("image", (1, 3, 224, 224))),
        ("image=1,3,224,224", ("image", (1, 3, 224, 224))),
        ("a=b:0=4", ("a=b:0", (4,))),
        ("scalar=", ("scalar", ())),
    ],
)
def test_a_shape_is_a_name_and_sizes(text: str, want: tuple[str, tuple[int, ...]]) -> None:
    assert parse_shape(text) == want


@pytest.mark.parametrize("text", ["1x3x224x224", "=1x3", "x=1x3xbatch", "x=1xx3", "x=0x3", "x=1x-3"])
def test_a_shape_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(OptionError):
        parse_shape(text)


def test_pick_gives_back_what_is_known() -> None:
    assert pick("stage", "fuse", ["normalize", "fuse"]) == "fuse"


def test_importing_hbc_loads_nothing_heavy_and_is_quick() -> None:
    code = (
        "import sys, time; begin = time.process_time(); import hbc; seconds = time.process_time() - begin;"
        "heavy = {'onnx', 'torch', 'llvmlite', 'onnxruntime', 'rich', 'click'} & set(sys.modules);"
        "assert not heavy, heavy; assert seconds < 0.3, seconds; assert hbc.__version__ and callable(hbc.compile)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_hbc_offers_what_it_lists() -> None:
    import hbc

    assert sorted(hbc.__all__) == hbc.__all__
    assert all(getattr(hbc, name) is not None for name in ("CompileOptions", "__version__", "compile", "parse"))
    assert set(hbc.__all__) <= set(dir(hbc))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = hbc.nothing
