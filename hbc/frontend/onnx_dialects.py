"""Operators outside ONNX that generators of quantised models write: why some can't be taken, and what to do instead."""

from __future__ import annotations

from collections.abc import Mapping

QUARK_DOMAINS = ("com.amd.quark", "com.vai.quantize")

_BLOCK_FLOAT = (
    "block floating point shares an exponent among neighbours, and the BPU has integers of one scale per tensor or "
    "channel"
)
_MINIFLOAT = "it rounds to floats below 16 bits, and the BPU computes with 8 and 16 bit integers"

# Known operators that no integers can stand for: op type → why.
REFUSED: Mapping[str, str] = {
    "FloatQuant": _MINIFLOAT, "BFPQuantizeDequantize": _BLOCK_FLOAT, "MXQuantizeDequantize": _BLOCK_FLOAT,
    "BFPFixNeuron": _BLOCK_FLOAT, "MXFixNeuron": _BLOCK_FLOAT,
    "MultiThreshold": "it is FINN's form of a quantised activation, made for FPGAs",
}  # fmt: skip

HINTS: Mapping[str, str] = {
    "onnx.brevitas": "export with brevitas.export.export_onnx_qcdq, with integer quantisers",
    "qonnx.custom_op.general": "quantise to integers (Quant), from before FINN's transformations",
    "finn.custom_op.general": "take the model from before FINN's transformations",
    "com.amd.quark": "quantise with an integer configuration, such as A8W8 or S16S8_ASWS",
    "com.vai.quantize": "quantise with an integer configuration, such as A8W8 or S16S8_ASWS",
    "ai.onnx.preview.training": "export the model for inference, without its optimiser",
    "com.microsoft.nchwc": "take the model from before ONNX Runtime's optimiser rewrote it for one CPU",
}
