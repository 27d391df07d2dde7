"""Operators outside ONNX that generators of quantised models write: which ones hbc takes, and why others can't be."""

from __future__ import annotations

from collections.abc import Mapping

_QONNX = frozenset({"Quant", "IntQuant", "BipolarQuant", "Trunc"})
_QUARK = frozenset({
    "ExtendedQuantizeLinear", "ExtendedDequantizeLinear", "VitisQuantizeLinear", "VitisDequantizeLinear",
})  # fmt: skip
QUARK_DOMAINS = ("com.amd.quark", "com.vai.quantize")

# Operators that rules take although ONNX Runtime has none of their domain.
TAKEN: Mapping[str, frozenset[str]] = {
    "qonnx.custom_op.general": _QONNX, "onnx.brevitas": _QONNX, "finn.custom_op.general": _QONNX,
    **dict.fromkeys(QUARK_DOMAINS, _QUARK),
}  # fmt: skip

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


def is_taken(domain: str, op_type: str) -> bool:
    """True for an operator of a custom domain that a rule takes."""
    return op_type in TAKEN.get(domain, frozenset())
