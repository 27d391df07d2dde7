"""Quantising a float model after its training (PTQ): calibration, choice of precision, a report of what it cost.

result = quantize_model("float.onnx", CompileOptions("nash"), calib="samples/")
result.save("quantised.onnx")                           # QDQ; goes through `hbc compile` as it is
result.ranking[0].name                                  # the tensor that loses most
"""

from __future__ import annotations

from .errors import QuantizeError
from .result import OutputLoss, QuantizeResult, TensorLoss

__all__ = ["OutputLoss", "QuantizeError", "QuantizeResult", "TensorLoss"]
