"""Examples of a PyTorch model's inputs, as users write them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hbc.diagnostics import OptionError
from hbc.example import Example, examples_of, parse_example
from hbc.options import CompileOptions
from hbc_runtime.types import DType


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("1x3x224x224", Example((1, 3, 224, 224))),
        ("1,3,8", Example((1, 3, 8))),
        ("ids=1x16:i64", Example((1, 16), DType.I64, "ids")),
        ("ids=1x16:int64", Example((1, 16), DType.I64, "ids")),
        ("a=b=4:bool", Example((4,), DType.BOOL, "a=b")),
        ("t=", Example((), DType.F32, "t")),
        (":f16", Example((), DType.F16)),
    ],
)
def test_a_text_is_an_example(text: str, want: Example) -> None:
    assert parse_example(text) == want


@given(
    st.builds(
        Example,
        st.lists(st.integers(1, 999), min_size=1, max_size=5).map(tuple),
        st.sampled_from(DType),
        st.sampled_from(["", "x", "image.0"]),
    )
)
@example(Example((1,), DType.U8, "x"))
def test_an_example_reads_back_what_it_prints(value: Example) -> None:
    assert parse_example(str(value)) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("1x3xax8", "isn't a list of sizes"),
        ("x=1x-3", "isn't a list of sizes"),
        ("1x0x3", "every size must be 1 or more"),
        ("ids=1x16:i46", "did you mean 'i64'"),
        ("1x3x", "isn't a list of sizes"),
    ],
)
def test_a_bad_text_is_explained(text: str, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_example(text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "given_",
    [
        (1, 3, 8, 8),
        [(1, 3, 8, 8)],
        "1x3x8x8",
        ["1x3x8x8"],
        np.zeros((1, 3, 8, 8), np.float32),
        [np.zeros((1, 3, 8, 8), np.float32)],
        [((1, 3, 8, 8), "f32")],
    ],
    ids=repr,
)
def test_an_api_takes_shapes_texts_and_arrays(given_: object) -> None:
    assert examples_of(given_) == (Example((1, 3, 8, 8)),)
    assert CompileOptions(example=given_).example == (Example((1, 3, 8, 8)),)


def test_names_come_from_a_mapping() -> None:
    found = examples_of({"image": (1, 3), "ids": "1x4:i64"})
    assert found == (Example((1, 3), name="image"), Example((1, 4), DType.I64, "ids"))
    assert examples_of(()) == ()


@pytest.mark.parametrize("given_", [3, [object()], [(1, "a")], [1.5]], ids=str.split("number object text float"))
def test_anything_else_is_refused(given_: object) -> None:
    with pytest.raises(OptionError):
        examples_of(given_)


@pytest.mark.parametrize("names", ["a,a", ["a", ""], [3], "a,,b"])
def test_output_names_are_distinct_texts(names: object) -> None:
    with pytest.raises(OptionError) as caught:
        CompileOptions(output_names=names)  # type: ignore[arg-type]
    assert "output_names" in str(caught.value)
    assert CompileOptions(output_names="a, b").output_names == ("a", "b")
