"""What a march and an arithmetic mean for integers: the few facts that the references need."""

from __future__ import annotations

from dataclasses import dataclass

from hbc_runtime.isa import Rounding

MARCHES = ("bernoulli2", "bayes", "bayes-e", "nash-e", "nash-m", "nash-p")
ARITHS = ("bpu", "onnx")


@dataclass(frozen=True)
class Semantics:
    """Numeric facts of one (march, arith) pair; sources in NUMERICS 2 and 3."""

    march: str = "nash-e"
    arith: str = "bpu"

    @property
    def rounding(self) -> Rounding:
        """How Quantize rounds. ONNX's own text is half to even in float32, which is also nash's rule [F]."""
        if self.arith == "onnx" or self.march.startswith("nash"):
            return Rounding.HALF_EVEN_F32
        return Rounding.HALF_AWAY_F64

    @property
    def bias_is_16_bit(self) -> bool:
        """bernoulli2 stores biases as i16 with a left shift [F]."""
        return self.march == "bernoulli2" and self.arith == "bpu"

    @property
    def is_onnx(self) -> bool:
        """True for `--arith onnx`."""
        return self.arith == "onnx"
