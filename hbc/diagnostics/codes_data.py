"""E06, E07, E08: samples, comparing with ONNX Runtime, quantising."""

from __future__ import annotations

from dataclasses import dataclass

from .message import Diagnostic, case


@dataclass(frozen=True, kw_only=True)
class BadSamples(Diagnostic):
    """A file of samples is missing, or isn't a sound `.npy` or `.npz`."""

    CODE = "E0601"
    EXAMPLE = case(
        title="this is no .npy or .npz file", loc="samples.txt", hint="write it by np.savez(path, NAME=array)"
    )


@dataclass(frozen=True, kw_only=True)
class MissingSample(Diagnostic):
    """A file of samples lacks an input of the model, or doesn't say which array is which input."""

    CODE = "E0602"
    EXAMPLE = case(
        title="input 'image' isn't in this file",
        loc="samples.npz",
        why="it has 'x', 'y'",
        hint="name the array 'image', or 'in_image'",
    )


@dataclass(frozen=True, kw_only=True)
class CannotCompare(Diagnostic):
    """Program and model can't be compared: they aren't of one model, or their outputs differ in shape."""

    CODE = "E0701"
    EXAMPLE = case(
        title="the program is not of this model", loc="model.onnx", why="the model has inputs 'image', the program 'x'"
    )


@dataclass(frozen=True, kw_only=True)
class CannotProbe(Diagnostic):
    """ONNX Runtime, the other side of the comparison, doesn't take or run the model."""

    CODE = "E0702"
    EXAMPLE = case(
        title="ONNX Runtime does not take this model", loc="model.onnx", why="Foo is not a registered function/op"
    )


@dataclass(frozen=True, kw_only=True)
class CannotQuantize(Diagnostic):
    """A model can't be quantised: nothing in it would run on integers, or its march has no such integers."""

    CODE = "E0801"
    EXAMPLE = case(title="there is nothing to quantise in this model", loc="model.onnx")


@dataclass(frozen=True, kw_only=True)
class AlreadyQuantised(Diagnostic):
    """A model that is to be quantised has QuantizeLinear or DequantizeLinear nodes, or integer operators, already."""

    CODE = "E0802"
    EXAMPLE = case(
        title="the model is quantised already",
        loc="model.onnx",
        why="2 tensors have a scale, the first 'x_quantized'",
        hint="compile it as it is, or give the float model",
    )


@dataclass(frozen=True, kw_only=True)
class BadCalibration(Diagnostic):
    """The samples for calibration are none, or don't fit the model's inputs."""

    CODE = "E0803"
    EXAMPLE = case(
        title="there are no samples to calibrate with", hint="--calib FOLDER with .npz, .npy, .png or .jpg files"
    )


@dataclass(frozen=True, kw_only=True)
class NotFinite(Diagnostic):
    """A sample, or a tensor that the float model computes from it, holds NaN or an infinity: it has no scale."""

    CODE = "E0804"
    EXAMPLE = case(
        title="sample 3 holds NaN in input 'image'", why="2 of 150528 elements", hint="check how it was made"
    )


@dataclass(frozen=True, kw_only=True)
class BadQuantizeConfig(Diagnostic):
    """The configuration of `hbc quantize` can't be read, or names a node, a tensor or a key that there is none of."""

    CODE = "E0805"
    EXAMPLE = case(title="there is no node named 'Conv_1x'", loc="hbc.yaml: nodes", hint="did you mean 'Conv_12'?")
