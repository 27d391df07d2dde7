"""Quantisation-aware training for PyTorch: float model → prepared → calibrated → trained → fixed point → `.hbm`.

    from hbc.quantization import March, calibrate, convert, prepare, set_march
    set_march(March.NASH_E)
    model = prepare(float_model, (image,))
    calibrate(model, loader)
    ...                                   # train as any module
    convert(model).save("model.hbm")

Names are resolved on first use; PyTorch is loaded then. `pip install 'hbc[torch]'` brings it.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .capturing import capture
    from .colour import CenteredYuv444, bgr2centered_yuv, rgb2centered_yuv
    from .compat import convert_fx, prepare_calibration_fx, prepare_qat_fx
    from .converting import FixedPointModel, compile_model, convert, export, export_quantized_onnx, export_to_onnx
    from .fake_quantize import FakeQuantize, FakeQuantSpec
    from .fusing import fuse_fx
    from .looking import ModelCheck, OpPlace, check_model, perf_model, visualize_model
    from .march import March, get_march, set_march
    from .observers import merge_statistics
    from .preparing import prepare
    from .qconfig import (
        DefaultSetter,
        ModuleNameSetter,
        QConfig,
        SensitiveOpSetter,
        UnitInfo,
        calibration_setter,
        default_calibration_qconfig_setter,
        default_qat_fixed_act_qconfig_setter,
        default_qat_qconfig_setter,
        get_default_qat_qconfig,
    )
    from .sampling import GridSample
    from .segment_lut import SegmentLUT
    from .states import (
        CALIBRATION,
        QAT,
        VALIDATION,
        FakeQuantState,
        calibrate,
        check_optimizer,
        set_fake_quantize,
        set_forward,
    )
    from .stubs import DeQuantStub, FloatFunctional, QuantStub
    from .units import QuantizedInput, QuantizedOperation, QuantizedUnit, QuantizedWeighted
    from .wrapping import wrap

_HOMES = {
    "march": ("March", "get_march", "set_march"),
    "colour": ("CenteredYuv444", "bgr2centered_yuv", "rgb2centered_yuv"),
    "sampling": ("GridSample",),
    "segment_lut": ("SegmentLUT",),
    "stubs": ("DeQuantStub", "FloatFunctional", "QuantStub"),
    "wrapping": ("wrap",),
    "capturing": ("capture",),
    "preparing": ("prepare",),
    "fake_quantize": ("FakeQuantSpec", "FakeQuantize"),
    "observers": ("merge_statistics",),
    "qconfig": (
        "DefaultSetter", "ModuleNameSetter", "QConfig", "SensitiveOpSetter", "UnitInfo", "calibration_setter",
        "default_calibration_qconfig_setter", "default_qat_fixed_act_qconfig_setter", "default_qat_qconfig_setter",
        "get_default_qat_qconfig",
    ),
    "states": (
        "CALIBRATION", "QAT", "VALIDATION", "FakeQuantState", "calibrate", "check_optimizer", "set_fake_quantize",
        "set_forward",
    ),
    "converting": ("FixedPointModel", "compile_model", "convert", "export", "export_quantized_onnx", "export_to_onnx"),
    "compat": ("convert_fx", "prepare_calibration_fx", "prepare_qat_fx"),
    "fusing": ("fuse_fx",),
    "looking": ("ModelCheck", "OpPlace", "check_model", "perf_model", "visualize_model"),
    "units": ("QuantizedInput", "QuantizedOperation", "QuantizedUnit", "QuantizedWeighted"),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "CALIBRATION",
    "QAT",
    "VALIDATION",
    "CenteredYuv444",
    "DeQuantStub",
    "DefaultSetter",
    "FakeQuantSpec",
    "FakeQuantState",
    "FakeQuantize",
    "FixedPointModel",
    "FloatFunctional",
    "GridSample",
    "March",
    "ModelCheck",
    "ModuleNameSetter",
    "OpPlace",
    "QConfig",
    "QuantStub",
    "QuantizedInput",
    "QuantizedOperation",
    "QuantizedUnit",
    "QuantizedWeighted",
    "SegmentLUT",
    "SensitiveOpSetter",
    "UnitInfo",
    "bgr2centered_yuv",
    "calibrate",
    "calibration_setter",
    "capture",
    "check_model",
    "check_optimizer",
    "compile_model",
    "convert",
    "convert_fx",
    "default_calibration_qconfig_setter",
    "default_qat_fixed_act_qconfig_setter",
    "default_qat_qconfig_setter",
    "export",
    "export_quantized_onnx",
    "export_to_onnx",
    "fuse_fx",
    "get_default_qat_qconfig",
    "get_march",
    "merge_statistics",
    "perf_model",
    "prepare",
    "prepare_calibration_fx",
    "prepare_qat_fx",
    "rgb2centered_yuv",
    "set_fake_quantize",
    "set_forward",
    "set_march",
    "visualize_model",
    "wrap",
]


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        msg = f"module 'hbc.quantization' has no attribute {name!r}"
        raise AttributeError(msg)
    if importlib.util.find_spec("torch") is None:
        from hbc.diagnostics import NoTorch, QuantizationError

        raise QuantizationError(NoTorch())
    value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
