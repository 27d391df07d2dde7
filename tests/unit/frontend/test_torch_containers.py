"""TorchScript models whose arguments are dicts, lists and tuples of tensors."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch makes and runs these models")

import hbc  # noqa: E402
from hbc.diagnostics import FrontendError  # noqa: E402
from hbc_runtime import Session  # noqa: E402
from tests.torch_scripts import FromDict, FromMany, Lists  # noqa: E402
from tests.torch_sketch import script  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.ort]
IMAGE, BIAS = torch.linspace(-1, 1, 24).reshape(1, 2, 3, 4), torch.ones(1, 2, 1, 1)


def run(model: Any, example: Any, inputs: dict[str, Any]) -> list[Any]:
    with Session(hbc.compile(model, arith="onnx", example=example).program) as session:
        assert [i.name for i in session.model.inputs] == list(inputs)
        return list(session.run({k: v.numpy() for k, v in inputs.items()}).values())


def scripted(model: Any, *_: Any) -> Any:
    return script(model)


def traced(model: Any, *inputs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(model.eval(), inputs, strict=False)


@pytest.mark.parametrize("made", [scripted, traced])
@pytest.mark.parametrize("names", [("image", "bias"), ("data.image", "data.bias")])
def test_a_dict_is_given_by_its_keys(made: Any, names: tuple[str, str]) -> None:
    model = made(FromDict(), {"image": IMAGE, "bias": BIAS})
    example = dict(zip(names, ((1, 2, 3, 4), (1, 2, 1, 1)), strict=True))
    (y,) = run(model, example, {"data.image": IMAGE, "data.bias": BIAS})
    np.testing.assert_allclose(y, (IMAGE * 2 + BIAS).numpy(), rtol=1e-6)


@pytest.mark.parametrize("made", [scripted, traced])
def test_tuples_and_lists_are_given_in_order(made: Any) -> None:
    model = made(FromMany(), (IMAGE, BIAS), [IMAGE, IMAGE + 1, IMAGE * 2])
    example = [(1, 2, 3, 4), (1, 2, 1, 1), *[(1, 2, 3, 4)] * 3]
    inputs = {"pair.0": IMAGE, "pair.1": BIAS, "xs.0": IMAGE, "xs.1": IMAGE + 1, "xs.2": IMAGE * 2}
    (y,) = run(model, example, inputs)
    np.testing.assert_allclose(
        y, (IMAGE + BIAS + torch.cat([IMAGE, IMAGE + 1, IMAGE * 2], 1).sum(1)).numpy(), rtol=1e-5
    )


@pytest.mark.parametrize(("model", "hint"), [(FromDict, "--example data.KEY=1x3x224x224"),
                                             (Lists, "--example xs.0=1x3x224x224")])  # fmt: skip
def test_without_examples_it_is_said_how_to_give_them(model: Any, hint: str) -> None:
    with pytest.raises(FrontendError) as raised:
        hbc.compile(script(model()))
    assert hint in str(raised.value)
