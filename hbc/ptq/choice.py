"""Scales: of activations from statistics, of weights from their values."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hbc.calibration import Fixed, Grid, Statistics, choose, parse_method, weight_scales
from hbc.calibration.grid import along
from hbc.ir import ops
from hbc.ir.core import Op, Value
from hbc.passes.matching import const_value

from .config import QuantizeConfig
from .points import Plan
from .settings import Setting

MOST_STEPS = 2.0**30  # of a bias: half of what i32 holds, as the accumulator needs the other half
BARELY = 1 + 1e-6  # beyond a threshold by less than this is float32's rounding of the scale


@dataclass
class Chooser:
    """Chooses settings; what was chosen once for the same tensors and bits is remembered."""

    config: QuantizeConfig
    statistics: dict[Value, Statistics] = field(default_factory=dict)
    activations: dict[tuple[tuple[Value, ...], int], Setting] = field(default_factory=dict)
    scales: dict[tuple[Value, int], np.ndarray] = field(default_factory=dict)

    def settings(self, plan: Plan, bits: Mapping[Value, int]) -> dict[Value, Setting]:
        """How every activation and weight of `plan` is rounded."""
        made: dict[Value, Setting] = {}
        for first in dict.fromkeys(plan.joined.values()):
            group = plan.group(first)
            key = (group, bits[first])
            if key not in self.activations:
                self.activations[key] = self._activation(group, bits[first])
            made.update(dict.fromkeys(group, self.activations[key]))
        for op, weight in plan.weights.items():
            x = op.operands[0]
            source = None if x is None else made.get(plan.root.get(x, x))
            made[weight] = self._weight(op, weight, bits[weight], source)
        return made

    def _activation(self, group: Sequence[Value], bits: int) -> Setting:
        seen = joined([self.statistics[v] for v in group])
        rules = [r for v in group if (r := self.config.tensors.get(str(v.name))) is not None]
        method = parse_method(next((r.method for r in rules if r.method), self.config.activations.method))
        threshold = next((r.threshold for r in rules if r.threshold), None)
        choice = choose(seen, Grid(bits), method if threshold is None else Fixed(threshold))
        chosen = float(choice.threshold[0]), float(choice.clipped[0])
        return Setting(bits, (float(choice.scale[0]),), choice.method, *chosen)

    def _weight(self, op: Op, weight: Value, bits: int, source: Setting | None) -> Setting:
        """One scale per output channel, no smaller than lets the bias fit the accumulator."""
        value, axis, grid = const_value(weight), weight_axis(op), Grid(bits, narrow=True)
        assert value is not None
        rule = self.config.tensors.get(str(weight.name))
        method: str = "mse" if rule is not None and rule.method == "mse" else self.config.weights.method
        if rule is not None and rule.threshold is not None:
            method = f"fixed={rule.threshold:g}"
            scale = grid.scale(np.full(1 if axis is None else value.shape[axis], rule.threshold))
        else:
            if (weight, bits) not in self.scales:
                self.scales[weight, bits] = weight_scales(value, grid, axis, method)
            scale = self.scales[weight, bits]
        bias = const_value(op.operands[2])
        if bias is not None and source is not None:
            least = np.abs(bias.astype(np.float64)) / source.scale[0] / MOST_STEPS
            scale = np.maximum(scale, (least.max(initial=0) if axis is None else least).astype(np.float32))
        limit = scale.astype(np.float64) * grid.qmax
        beyond = np.abs(value) > along(limit if axis is not None else limit[0], axis, value.ndim) * BARELY
        threshold, clipped = float(limit.max()), float(beyond.mean())
        return Setting(bits, tuple(map(float, scale)), method, threshold, clipped, axis=axis, narrow=True)


def weight_axis(op: Op) -> int | None:
    """The axis of a product's weight along which its scales run; None for one scale, where groups cut the axis up."""
    if isinstance(op, ops.ConvTranspose2d):
        return 1 if op.group == 1 else None
    return 0


def joined(parts: Sequence[Statistics]) -> Statistics:
    """Statistics of tensors that share a scale. Their averages are not of one stream: the widest counts."""
    if len(parts) == 1:
        return parts[0]
    whole = copy.deepcopy(parts[0])
    for other in parts[1:]:
        whole.merge(other)
    whole.average_low = np.min([p.average_low for p in parts], axis=0)
    whole.average_high = np.max([p.average_high for p in parts], axis=0)
    return whole
