"""`quantize_model`: a float model and samples in, a quantised ONNX model and a report of what it lost out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from hbc import samples as reading
from hbc.ir import ops
from hbc.ir.core import Module, Value
from hbc.options import CompileOptions
from hbc.words import plural
from hbc_runtime.program import TensorInfo

from .auto import raise_worst, sensitivity
from .collect import OnStep, Sample, checked, collect, inputs_of
from .config import QuantizeConfig
from .correct import corrections
from .equalise import equalise
from .legalise import Quantised, Settler
from .measure import Losses, measure_losses
from .precision import nodes_of, require_tensors, wishes
from .prepare import prepare
from .read_config import read_config
from .result import OutputLoss, QuantizeResult, TensorLoss

if TYPE_CHECKING:
    from onnx import ModelProto

    from hbc.samples.spec import Preprocess

Reader = Callable[[Sequence[TensorInfo]], "Sequence[Mapping[str, npt.ArrayLike]]"]


def quantize_model(
    source: str | Path | bytes | ModelProto | object,
    options: CompileOptions,
    *,
    calib: str | Path | Reader | Sequence[Mapping[str, npt.ArrayLike]],
    config: str | Path | Mapping[str, Any] | QuantizeConfig | None = None,
    preprocess: Preprocess | None = None,
    rank: bool = True,
    histograms: bool = False,
    threads: int = 1,
    on_step: OnStep | None = None,
) -> QuantizeResult:
    """Quantise a float model for a march by calibration. `options` brings march, and shapes that the model leaves open.

    `calib`: samples (mappings by input name), a file or folder of them (`.npz`, `.npy`, images by `preprocess`), or
    what reads them once the inputs are known. `config`: a YAML or JSON file, or its keys. `rank`: measure what each
    tensor alone does to the outputs, in as many runs as there are tensors. `histograms`: for the page.

    Raises QuantizeError where there are no samples, they hold NaN, the model is quantised already or the configuration
    names what there isn't; InputMismatch where a sample doesn't fit; other HbcErrors where the model can't be taken in.
    """
    rules = read_config(config)
    module = prepare(source, options)
    wanted = wishes(module, rules)
    samples = checked(module, _read(module, calib, preprocess or _stated(rules)))[: rules.samples]
    few = samples[: rules.measured]
    notes = _equalised(module, rules, samples, on_step, threads) if rules.equalise else ()

    def watch(values: Sequence[Value]) -> dict[Value, Any]:
        return collect(module, values, samples, on_step, threads)

    settler = Settler(module, wanted, options, watch)
    made = settler.settle()
    require_tensors(wanted, made.plan)
    ranked: dict[Value, float] = {}
    raised: frozenset[Value] = frozenset()
    more: tuple[str, ...] = ()
    if rank or rules.auto is not None:
        ranked = sensitivity(module, made, few, on_step, threads)
    if rules.auto is not None:
        made, raised, more = raise_worst(module, settler, rules.auto, ranked, few, on_step, threads)
    fixed = corrections(module, made, few, on_step, threads) if rules.bias_correction else {}
    if fixed:
        settler.corrections = fixed
        made = replace(settler.attempt(raised), left=made.left)
    losses = measure_losses(module, made, few, on_step, histograms=histograms, threads=threads)
    where = str(source) if isinstance(source, str | Path) else module.metadata.get("source", "model")
    return _result(
        where, module, made, losses, len(samples), len(few), ranked, raised, (*notes, *wanted.notes, *more), len(fixed)
    )


def _equalised(
    module: Module, rules: QuantizeConfig, samples: Sequence[Sample], on_step: OnStep | None, threads: int
) -> tuple[str, ...]:
    """Equalise, but for tensors that the configuration names; what to say of it."""
    done = equalise(module, samples, keep=frozenset(rules.tensors), on_step=on_step, threads=threads)
    if not done:
        return ()
    return (
        f"the channels between {plural(done, 'pair')} of products are equalised: they differ by factors that cancel",
    )


def _stated(rules: QuantizeConfig) -> Preprocess | None:
    return None if rules.preprocess is None else reading.parse_preprocess(rules.preprocess)


def _read(
    module: Module,
    calib: str | Path | Reader | Sequence[Mapping[str, npt.ArrayLike]],
    preprocess: Preprocess | None,
) -> Sequence[Mapping[str, npt.ArrayLike]]:
    infos = inputs_of(module)
    if isinstance(calib, str | Path):
        return reading.read_samples(Path(calib), infos, preprocess)
    return calib(infos) if callable(calib) else calib


def _result(
    where: str,
    module: Module,
    made: Quantised,
    losses: Losses,
    samples: int,
    measured: int,
    ranked: Mapping[Value, float],
    raised: frozenset[Value],
    notes: tuple[str, ...],
    corrected: int,
) -> QuantizeResult:
    readers = {w: op for op, w in made.plan.weights.items()}
    rows, histograms = [], {}
    for value in dict.fromkeys([*made.plan.activations, *readers]):
        setting = made.settings[value]
        own, total = losses.of(value)
        op = readers.get(value) or value.op
        kind = "weight" if value in readers else "activation"
        made_by = "input" if op is None else "constant" if isinstance(op, ops.Const) else op.NAME
        row = TensorLoss(
            name=str(value.name),
            kind=kind,
            op=made_by,
            nodes=() if op is None else nodes_of(op),
            dtype=setting.dtype.text,
            shape=value.type.shape,
            scale=max(setting.scale),
            channels=len(setting.scale),
            spread=max(setting.scale) / min(setting.scale),
            method=setting.method,
            threshold=setting.threshold,
            clipped=setting.clipped,
            own=own,
            total=total,
            output=ranked.get(value),
            raised=made.plan.joined.get(value, value) in raised and setting.bits == 16,
        )
        rows.append(row)
        histogram = losses.histogram(value)
        if histogram is not None:
            histograms[str(value.name)] = histogram
    outputs = tuple(OutputLoss(name, d.done()) for name, d in losses.outputs.items())
    return QuantizeResult(
        where, module.march, made.data, samples, measured, tuple(rows), outputs, made.left, notes, corrected, histograms
    )
