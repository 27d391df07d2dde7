"""E02: reading a model file and taking its nodes in."""

from __future__ import annotations

from dataclasses import dataclass

from .message import Diagnostic, case


@dataclass(frozen=True, kw_only=True)
class NoModelFile(Diagnostic):
    """The path given for a model leads to no file that can be read, or to something that isn't a file."""

    CODE = "E0201"
    EXAMPLE = case(title="there is no such file", loc="modle.onnx", hint="check the path")


@dataclass(frozen=True, kw_only=True)
class NotAModel(Diagnostic):
    """The file holds something else than a serialised ONNX model, or only a piece of one."""

    CODE = "E0202"
    EXAMPLE = case(
        title="this is not an ONNX model",
        loc="model.onnx",
        why="it looks like a web page",
        hint="export or download the model again",
    )


@dataclass(frozen=True, kw_only=True)
class BadModel(Diagnostic):
    """The model as a whole breaks ONNX's rules, or is written in a version that hbc doesn't know: its graph, its names,
    its opset, its functions.
    """

    CODE = "E0203"
    EXAMPLE = case(
        title="a node reads a tensor that nothing defines",
        loc="model.onnx: node 'Conv_3' (Conv), tensor 'x7'",
        hint="export the model again",
    )


@dataclass(frozen=True, kw_only=True)
class BadTensor(Diagnostic):
    """A constant of the model can't be read: its data don't fit its shape, or its element type isn't taken."""

    CODE = "E0204"
    EXAMPLE = case(
        title="the tensor's data don't fit its shape",
        loc="model.onnx: tensor 'conv1.weight'",
        why="1728 bytes for 64x3x3x3 of float32",
        hint="export or download the model again",
    )


@dataclass(frozen=True, kw_only=True)
class BadExternalData(Diagnostic):
    """The model keeps its weights in a second file, and that one is missing, too short, or out of bounds."""

    CODE = "E0205"
    EXAMPLE = case(
        title="the external data file is missing",
        loc="model.onnx: tensor 'conv1.weight'",
        why="there is no 'model.onnx.data'",
        hint="put it beside the model, at model.onnx.data",
    )


@dataclass(frozen=True, kw_only=True)
class BadModelInput(Diagnostic):
    """An input of the model is no tensor, or of a type or size that isn't taken."""

    CODE = "E0206"
    EXAMPLE = case(
        title="an input is no tensor",
        loc="model.onnx: input 'boxes'",
        why="it is a sequence",
        hint="export the model with tensor inputs",
    )


@dataclass(frozen=True, kw_only=True)
class OpenSizes(Diagnostic):
    """hbc compiles for fixed sizes, and the model leaves some open. `--shape` binds them."""

    CODE = "E0207"
    EXAMPLE = case(
        title="the model leaves sizes of its inputs open",
        loc="model.onnx",
        why="input 'image' is Nx3x224x224",
        hint="--shape image=1x3x224x224",
    )


@dataclass(frozen=True, kw_only=True)
class ShapeClash(Diagnostic):
    """A shape that was given for an input isn't one that the model can have."""

    CODE = "E0208"
    EXAMPLE = case(
        title="the shape [1, 3, 224] has rank 3",
        loc="model.onnx: input 'image'",
        why="the model says Nx3x224x224",
        hint="--shape image=1x3x224x224",
    )


@dataclass(frozen=True, kw_only=True)
class TooLarge(Diagnostic):
    """The model, one of its tensors, or all its constants together are beyond what a program can hold."""

    CODE = "E0209"
    EXAMPLE = case(
        title="the shape [100000, 100000] is beyond 2 GiB",
        loc="model.onnx: tensor 'table'",
        hint="check how the model was exported",
    )


@dataclass(frozen=True, kw_only=True)
class BadNode(Diagnostic):
    """A node's operands and attributes don't fit together, or one is missing: ONNX itself refuses such a node."""

    CODE = "E0210"
    EXAMPLE = case(
        title="input and weight differ in rank",
        loc="model.onnx: node 'Conv_3' (Conv, opset 17)",
        why="[1, 3, 224, 224] and [64, 3, 7]",
    )


@dataclass(frozen=True, kw_only=True)
class NotTaken(Diagnostic):
    """The node is sound, but hbc can neither compile it nor leave it to ONNX Runtime."""

    CODE = "E0211"
    EXAMPLE = case(
        title="the vendor's operator HzGridSample isn't taken yet",
        loc="model.onnx: node 'warp' (horizon.HzGridSample, opset 1)",
        hint="export the calibrated model instead (HzCalibration), which hbc takes whole",
    )


@dataclass(frozen=True, kw_only=True)
class UnknownSize(Diagnostic):
    """A result follows from data so far that not even the number of its axes is known before the model runs."""

    CODE = "E0212"
    EXAMPLE = case(
        title="the rank of a result isn't known before running",
        loc="model.onnx: from node 'NonZero_9' (NonZero) on",
        why="neither inference nor the file says how many axes 'found' has, or it is no tensor",
        hint="state its rank in the model (value_info, with names for open sizes), or cut the model before it",
    )


@dataclass(frozen=True, kw_only=True)
class BadQuantization(Diagnostic):
    """A scale or zero point is impossible, or doesn't fit its tensor."""

    CODE = "E0213"
    EXAMPLE = case(
        title="the scale 'x_scale' holds -0.1",
        loc="model.onnx: node 'q1' (QuantizeLinear, opset 17)",
        why="a scale is a positive, finite number",
        hint="calibrate the model again",
    )


@dataclass(frozen=True, kw_only=True)
class BadModelOutput(Diagnostic):
    """The file states another type for an output than its nodes compute."""

    CODE = "E0214"
    EXAMPLE = case(
        title="an output has another type than the model says",
        loc="model.onnx: output 'scores'",
        why="the file states float16, its nodes compute float32",
        hint="export the model again",
    )


@dataclass(frozen=True, kw_only=True)
class SeveralNodes(Diagnostic):
    """More than one node can't be taken in; the message lists them all, each with what is wrong with it."""

    CODE = "E0215"
    EXAMPLE = case(
        title="2 nodes can't be taken in",
        loc="model.onnx",
        why="node 'NonZero_9' (NonZero): the size of a result isn't known before running\n"
        "node 'warp' (HzGridSample): the vendor's operator isn't taken yet",
        hint="cut the model before these nodes",
    )


@dataclass(frozen=True, kw_only=True)
class NoOnnx(Diagnostic):
    """A package that reading this model needs isn't installed."""

    CODE = "E0216"
    EXAMPLE = case(title="reading ONNX needs the onnx package", loc="model.onnx", hint="pip install hbc")
