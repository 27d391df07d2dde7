"""What makes a tensor hard to hold in few bits, and what helps.

The measure is bits that are left (`TensorStatistics.channel_bits`): a per-tensor scale gives a channel that is much
smaller than the largest one, or that varies little about a large mean, only a few of the integers. Where half of
the channels have fewer than four bits left, the tensor is flagged; so is one that loses more by saturation than 27 dB,
the noise that `hbc verify` calls CLOSE. The thresholds are hbc's own choice.
"""

from __future__ import annotations

import numpy as np

from hbc.verify.measure import CLOSE_SQNR
from hbc.words import plural

from .tensor_statistics import Floats, TensorStatistics
from .weight_statistics import WeightStatistics

FEW = 4.0  # bits
SHARE = 0.5  # of the channels that vary
WIDE = 8.0  # the largest channel's magnitude over the median one's: three bits
OFFSET = 2.0  # means in standard deviations: the zero lies outside of the bulk
UNUSED = 0.25  # of the range that is reached: two bits are never used
TAIL = 24.0  # the largest magnitude in standard deviations


def low_bits(bits: Floats, share: float = SHARE) -> float | None:
    """The bits of the channel that `share` of the channels are worse than or equal to; None without channels."""
    if not bits.size:
        return None
    return float(np.sort(bits)[max(0, int(np.ceil(share * bits.size)) - 1)])


def activation_reasons(s: TensorStatistics) -> tuple[str, ...]:
    """Why a feature map is flagged; empty where it isn't."""
    if s.nonfinite:
        return (f"{plural(s.nonfinite, 'element')} NaN or infinite",)
    found = []
    if s.clipping_sqnr < CLOSE_SQNR:
        found.append(f"{s.saturation:.2%} of the elements saturate: {s.clipping_sqnr:.1f} dB")
    bits = s.channel_bits()
    few = low_bits(bits)
    if few is None or few >= FEW:
        return tuple(found)
    count = int(np.count_nonzero(bits < FEW))
    found.append(f"{count} of {plural(bits.size, 'channel')} have under {FEW:g} bits left")
    largest, spread = float(s.absmax.max(initial=0.0)), s.spread
    if spread > WIDE:
        found.append(f"wide: the largest channel is {spread:.3g} times the median one")
    if abs(s.mean) > OFFSET * s.std:
        found.append(
            f"asymmetric: the mean {s.mean:.3g} is {abs(s.mean) / max(s.std, 1e-30):.3g} standard deviations off 0"
        )
    elif s.used is not None and s.used < UNUSED:
        found.append(f"only {s.used:.1%} of the range is used: the scale is too large")
    elif spread <= WIDE and s.std and largest > TAIL * s.std:
        found.append(f"outliers: the largest magnitude is {largest / s.std:.3g} standard deviations")
    return tuple(found)


def activation_advice(s: TensorStatistics, dtype: str, reasons: tuple[str, ...]) -> str:
    """What to do about a flagged feature map."""
    if not reasons:
        return ""
    if s.nonfinite:
        return "look for a division by zero or an overflow in the float model"
    if s.clipping_sqnr < CLOSE_SQNR and len(reasons) == 1:
        return "calibrate on more data, or with another observer"
    if any("scale is too large" in r for r in reasons):
        return "calibrate again"
    if dtype == "int16":
        return "int16 already: normalise it in the float model"
    return "int16"


def weight_reasons(w: WeightStatistics) -> tuple[str, ...]:
    """Why a weight is flagged: channels whose usual values are a few steps of their own scale; empty where it isn't."""
    poor = [c for c in range(w.channels) if w.bits[c] < FEW]
    if not poor:
        return ()
    worst = min(poor, key=lambda c: w.bits[c])
    return (
        f"{len(poor)} of {w.channels} channels have under {FEW:g} bits left",
        f"wide: in channel {worst} the largest value is {w.peak[worst]:.3g} times a usual one",
    )
