"""E06, E07: samples, and comparing with ONNX Runtime."""

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
