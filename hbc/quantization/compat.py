"""The familiar names of the vendor's plugin, as thin wrappers of `prepare` and `convert`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import fx, nn

from hbc.diagnostics import OptionError, error

from .converting import FixedPointModel, convert
from .errors import no_such
from .preparing import prepare
from .qconfig import DefaultSetter, ModuleNameSetter, QConfig, calibration_setter, require_qconfig
from .states import CALIBRATION, QAT, FakeQuantState, set_fake_quantize

_HYBRID = ("module_name", "module_type")
_QCONFIG_KEYS = ("", "module_name")


def prepare_qat_fx(
    model: nn.Module,
    qconfig_dict: Mapping[str, Any] | None = None,
    example_inputs: Any = None,
    *,
    hybrid_dict: Mapping[str, Any] | None = None,
) -> fx.GraphModule:
    """`prepare` in state QAT. `qconfig_dict`: "" for all, "module_name" for a list of (name, qconfig).

    `example_inputs` is needed: the model is captured from one run.
    """
    return _prepared(model, qconfig_dict, example_inputs, hybrid_dict, QAT)


def prepare_calibration_fx(
    model: nn.Module,
    qconfig_dict: Mapping[str, Any] | None = None,
    example_inputs: Any = None,
    *,
    hybrid_dict: Mapping[str, Any] | None = None,
) -> fx.GraphModule:
    """`prepare` in state CALIBRATION, with histogram observers where the qconfig names none."""
    return _prepared(model, qconfig_dict, example_inputs, hybrid_dict, CALIBRATION)


def _prepared(model: nn.Module, qconfigs: Any, example: Any, hybrid: Any, state: FakeQuantState) -> fx.GraphModule:
    if example is None:
        hint = 'prepare_qat_fx(model, {"": qconfig}, example_inputs=(x,))'
        raise error(OptionError, "example_inputs are missing", why="the model is captured from one run", hint=hint)
    given = dict(qconfigs or {})
    for key in given:
        if key not in _QCONFIG_KEYS:
            raise no_such("key of qconfig_dict", str(key), _QCONFIG_KEYS)
    for key in hybrid or {}:
        if key not in _HYBRID:
            raise no_such("key of hybrid_dict", str(key), _HYBRID)
    base: QConfig | None = given.get("")
    if base is not None:
        require_qconfig(base, "of the whole model, ''")
    whole = calibration_setter() if state is CALIBRATION and base is None else DefaultSetter(base or QConfig())
    named = ModuleNameSetter(dict(given.get("module_name", ())))
    kept = [item for key in _HYBRID for item in (hybrid or {}).get(key, ())]
    prepared = prepare(model, example, (named, whole), cpu=kept)
    set_fake_quantize(prepared, state)
    return prepared


def convert_fx(model: nn.Module, example_inputs: Any = None, **options: Any) -> FixedPointModel:
    """`convert`."""
    return convert(model, example_inputs, **options)
