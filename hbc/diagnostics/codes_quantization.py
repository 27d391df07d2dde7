"""E09: the quantisation kit for PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

from .message import Diagnostic, case


@dataclass(frozen=True, kw_only=True)
class NoTorch(Diagnostic):
    """The quantisation kit needs PyTorch, which isn't installed."""

    CODE = "E0901"
    TITLE = "hbc.quantization needs PyTorch"
    WHY = "torch isn't installed"
    HINT = "pip install 'hbc[torch]'"


@dataclass(frozen=True, kw_only=True)
class CannotCapture(Diagnostic):
    """The model could not be run on its example inputs, or what it did there can't be written down as a graph."""

    CODE = "E0902"
    EXAMPLE = case(
        title="the model fails on its example inputs",
        why="RuntimeError: mat1 and mat2 shapes cannot be multiplied (1x64 and 32x10)",
        hint="give prepare the inputs that model(*example_inputs) runs with",
    )


@dataclass(frozen=True, kw_only=True)
class NotPrepared(Diagnostic):
    """A float model was given where a prepared one is needed."""

    CODE = "E0903"
    EXAMPLE = case(
        title="export takes a prepared model, and this LaneNet is a float model",
        why="it holds no FakeQuantize, so that there are no scales to export",
        hint="model = prepare(model, example_inputs), calibrate it, then export it",
    )


@dataclass(frozen=True, kw_only=True)
class PreparedTwice(Diagnostic):
    """A model that is fused or prepared already was given to be fused or prepared."""

    CODE = "E0904"
    EXAMPLE = case(
        title="this model is prepared already",
        why="'conv1' is a QuantizedConv2d",
        hint="call prepare once, on the float model; prepare fuses by itself",
    )


@dataclass(frozen=True, kw_only=True)
class FunctionalReused(Diagnostic):
    """One FloatFunctional is called at several places of a forward: they would share one scale."""

    CODE = "E0905"
    EXAMPLE = case(
        title="the FloatFunctional 'block.add' is called 2 times in one forward",
        why="each call has a range of its own, and an instance has one scale",
        hint="make one FloatFunctional per call in __init__, or write x + y",
    )


@dataclass(frozen=True, kw_only=True)
class WrongDevice(Diagnostic):
    """Model and inputs, or parts of a model, are on different devices."""

    CODE = "E0906"
    EXAMPLE = case(
        title="model and example inputs are on different devices",
        why="parameters are on cuda:0, input 0 is on cpu",
        hint="move the inputs: x.to('cuda:0')",
    )


@dataclass(frozen=True, kw_only=True)
class NotExportable(Diagnostic):
    """An operation of the model has no form that hbc's compiler takes."""

    CODE = "E0907"
    EXAMPLE = case(
        title="the function fft_fft can't be exported",
        loc="module 'head'",
        why="there is no ONNX operator for it in hbc",
        hint="leave it outside of the model, or write it with other operations",
    )


@dataclass(frozen=True, kw_only=True)
class BadQConfig(Diagnostic):
    """A qconfig asks for what the march, or the kit, doesn't have."""

    CODE = "E0908"
    EXAMPLE = case(title="int16 isn't available on bernoulli2", loc="qconfig of 'neck.add'", hint="use int8 there")


@dataclass(frozen=True, kw_only=True)
class StaleOptimizer(Diagnostic):
    """An optimizer holds parameters that the prepared model doesn't have: it was made before prepare."""

    CODE = "E0909"
    EXAMPLE = case(
        title="12 of the optimizer's 12 parameters are not in this model",
        why="prepare returns a new model; the optimizer still updates the old one",
        hint="make the optimizer after prepare: SGD(model.parameters(), …)",
    )


@dataclass(frozen=True, kw_only=True)
class NotCalibrated(Diagnostic):
    """A scale is needed that nothing was observed for."""

    CODE = "E0910"
    EXAMPLE = case(
        title="'neck.add' has no scale yet",
        why="no data went through it while it observed",
        hint="calibrate(model, loader), or train in state QAT, before converting",
    )


@dataclass(frozen=True, kw_only=True)
class MarchDiffers(Diagnostic):
    """A model was trained with one chip's arithmetic and is compiled for another's."""

    CODE = "E0920"
    EXAMPLE = case(
        title="this model is prepared for nash-e, and bayes computes other integers",
        why="nash-e and bayes round inputs differently",
        hint="set_march('bayes') before prepare, or compile for nash-e",
    )


@dataclass(frozen=True, kw_only=True)
class NormInTraining(Diagnostic):
    """A batch norm takes statistics of calibration data, as its model is in training mode."""

    CODE = "E0921"
    EXAMPLE = case(
        title="the batch norm of 'stem.conv' is in training mode while the model is calibrated",
        why="its statistics would follow the calibration data",
        hint="model.eval() before the calibration; calibrate(model, loader) does that",
    )


@dataclass(frozen=True, kw_only=True)
class CannotTrace(Diagnostic):
    """torch.jit.trace was called on a model whose integers it can't write down."""

    CODE = "E0922"
    EXAMPLE = case(
        title="a FixedPointModel can't be traced",
        why="its program runs outside of torch; the trace would hold this input's results as constants",
        hint="model.save('model.hbm') keeps it; trace the prepared model for a TorchScript file",
    )


@dataclass(frozen=True, kw_only=True)
class NotEager(Diagnostic):
    """`prepare(method="eager")` swaps modules; what the forward does besides has no place for a scale."""

    CODE = "E0923"
    EXAMPLE = case(
        title="add is called on a quantised tensor",
        loc="forward of module 'layer1.0'",
        why="a function has no place for a scale of its own",
        hint="self.add = FloatFunctional() in __init__, and self.add.add(…) here; or method='capture'",
    )
