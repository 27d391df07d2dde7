"""Switches of a prepared model: what its FakeQuantizes do, and in which arithmetic its units compute."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sized
from typing import Any, Literal

import torch
from torch import nn

from hbc.diagnostics import NotCalibrated, NotPrepared, OptionError, StaleOptimizer, error

from .errors import SHOWN, no_such, trouble
from .fake_quantize import FakeQuantize
from .units import MODES, is_prepared, units_of


class FakeQuantState(enum.Enum):
    """QAT observes and quantises, CALIBRATION observes only, VALIDATION quantises only, FLOAT does neither."""

    QAT = "qat"
    CALIBRATION = "calibration"
    VALIDATION = "validation"
    FLOAT = "float"


QAT, CALIBRATION, VALIDATION = FakeQuantState.QAT, FakeQuantState.CALIBRATION, FakeQuantState.VALIDATION


def require_prepared(model: object, verb: str) -> None:
    """NotPrepared for a float model, and for a converted one."""
    if getattr(model, "is_fixed_point", False):
        raise trouble(
            f"{verb} takes a prepared model, and this {type(model).__name__} is converted already",
            why="it is a compiled program of integers, without FakeQuantize, weights or gradients",
            hint=f"call {verb} on the model that convert was given",
            kind=NotPrepared,
        )
    if not isinstance(model, nn.Module) or not is_prepared(model):
        raise trouble(
            f"{verb} takes a prepared model, and this {type(model).__name__} is a float model",
            why="it holds no FakeQuantize, so that there are no scales",
            hint="model = prepare(model, example_inputs), calibrate it, then use that one",
            kind=NotPrepared,
        )


def require_calibrated(model: nn.Module) -> None:
    """NotCalibrated where a result of a prepared model has no scale; the message lists the first ones."""
    fqs = [u.activation_post_process for u in units_of(model).values()]
    missing = [fq.name for fq in fqs if fq is not None and not fq.is_ready()]
    if not missing:
        return
    listed = ", ".join(repr(n) for n in missing[:SHOWN]) + (", …" if len(missing) > SHOWN else "")
    raise trouble(
        f"{len(missing)} of {len(fqs)} operations have no scale yet",
        where=f"modules {listed}",
        why="no data went through them while they observed",
        hint="calibrate(model, loader), or train in state QAT, before this",
        kind=NotCalibrated,
    )


def set_fake_quantize(model: nn.Module, state: FakeQuantState | str) -> None:
    """Turn the switches of every FakeQuantize. Leaving CALIBRATION makes scales of what was observed."""
    require_prepared(model, "set_fake_quantize")
    found = state if isinstance(state, FakeQuantState) else None
    if found is None:
        names = [s.value for s in FakeQuantState]
        if str(state).lower() not in names:
            raise no_such("state", str(state), names)
        found = FakeQuantState(str(state).lower())
    for fq in fake_quantizes(model):
        if fq.observing and not fq.quantizing and found is not CALIBRATION:
            fq.compute_scale()
        fq.observing = found in {QAT, CALIBRATION}
        fq.quantizing = found in {QAT, VALIDATION}
        if fq.spec.scale is not None:
            fq.observing = False


def set_forward(model: nn.Module, mode: Literal["auto", "exact", "plain"]) -> None:
    """`exact`: the integers of the compiled program, in training too; `plain`: fake-quantised reals; `auto`: exact in
    eval, plain in training. In exact training batch norms keep their statistics.
    """
    require_prepared(model, "set_forward")
    if mode not in MODES:
        raise no_such("mode of forward", str(mode), MODES)
    for unit in units_of(model).values():
        unit.mode = mode


def fake_quantizes(model: nn.Module) -> list[FakeQuantize]:
    """Every FakeQuantize of a model."""
    return [m for m in model.modules() if isinstance(m, FakeQuantize)]


def check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """StaleOptimizer where an optimizer updates tensors that aren't parameters of `model`."""
    own = {id(p) for p in model.parameters()}
    held = [p for group in optimizer.param_groups for p in group["params"]]
    strange = sum(id(p) not in own for p in held)
    if strange:
        raise trouble(
            f"{strange} of the optimizer's {len(held)} parameters are not in this model",
            why="prepare returns a new model; the optimizer still updates the old one",
            hint="make the optimizer after prepare: SGD(model.parameters(), …)",
            kind=StaleOptimizer,
        )


def calibrate(
    model: nn.Module, loader: Iterable[Any], steps: int | None = None, *, progress: bool = True, device: Any = None
) -> int:
    """Run batches through a prepared model, observing, and make scales of them; how many batches there were.

    A batch is what the model takes: a tensor, a dict, or a tuple of arguments; of a list or tuple that is longer than
    the model's arguments, labels for instance, the first ones are taken. `steps`: at most so many batches. Leaves the
    model in state VALIDATION and eval mode. An interruption (Ctrl-C) leaves the scales of what was seen so far.
    """
    from .capturing import check_devices

    require_prepared(model, "calibrate")
    arguments = {position for _, position, _ in model.meta["interface"].inputs}  # type: ignore[index, union-attr]
    model.eval()
    set_fake_quantize(model, CALIBRATION)
    count = 0
    try:
        with torch.no_grad():
            for batch in _shown(loader, steps, show=progress):
                args = batch_arguments(batch, max(arguments) + 1, device)
                if not count:
                    model.meta["interface"].leaves(args)  # type: ignore[index, union-attr]
                    check_devices(model, args)
                model(*args)
                count += 1
                if count == steps:
                    break
    finally:
        set_fake_quantize(model, VALIDATION)
    if not count:
        raise error(OptionError, "there is no batch to calibrate with", hint="give a loader that isn't empty")
    return count


def batch_arguments(batch: Any, count: int, device: Any = None) -> tuple[Any, ...]:
    """The first `count` arguments that a loader's batch holds, moved to `device`."""
    from .pytree import rebuild

    is_tuple = isinstance(batch, (tuple, list)) and not hasattr(batch, "_fields")
    args = tuple(batch)[:count] if is_tuple else (batch,)
    if device is None:
        return args
    return tuple(rebuild(args, lambda t: t.to(device) if isinstance(t, torch.Tensor) else t))


def _shown(loader: Iterable[Any], steps: int | None, *, show: bool) -> Iterable[Any]:
    """The batches, with a bar on stderr where that is a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    total = len(loader) if isinstance(loader, Sized) else None
    total = steps if total is None else min(total, steps or total)
    hidden = not show or not console.is_terminal
    return track(loader, "calibrating", total=total, console=console, disable=hidden, transient=True)
