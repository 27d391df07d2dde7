"""The marches, as far as a run cares: how a float that the user hands over becomes an integer at the border."""

from __future__ import annotations

from .isa import Rounding

# NUMERICS 2: nash rounds half to even in float32, the older marches half away from zero in float64
BORDER_ROUNDING: dict[str, Rounding] = {
    "bernoulli2": Rounding.HALF_AWAY_F64,
    "bayes": Rounding.HALF_AWAY_F64,
    "bayes-e": Rounding.HALF_AWAY_F64,
    "nash-e": Rounding.HALF_EVEN_F32,
    "nash-m": Rounding.HALF_EVEN_F32,
    "nash-p": Rounding.HALF_EVEN_F32,
}
ARITHS = ("bpu", "onnx")


def border_rounding(march: str, arith: str) -> Rounding:
    """How `Session.run` quantises a float array: the march's rule, or QuantizeLinear's with `onnx`."""
    return Rounding.HALF_EVEN_F32 if arith == "onnx" else BORDER_ROUNDING[march]
