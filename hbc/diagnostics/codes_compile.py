"""E03, E04, E05: the verifier, the passes, emission."""

from __future__ import annotations

from dataclasses import dataclass

from .message import Diagnostic, case


@dataclass(frozen=True, kw_only=True)
class ConstraintBroken(Diagnostic):
    """An op breaks a numbered constraint of its class (docs/ops.md), or the graph breaks a law that all graphs obey:
    FORM (operands, attributes and results are as declared), SSA (defined before used), USES, TYPE, NAMES, OUTPUTS.
    """

    CODE = "E0301"
    TITLE = "{op} ({node!r}) breaks {constraint}: {message}"
    EXAMPLE = case(op="conv2d", node="Conv_3", constraint="C2", message="group 3 doesn't divide 64 channels")
    op: str
    node: str
    constraint: str
    message: str


@dataclass(frozen=True, kw_only=True)
class PassRefused(Diagnostic):
    """A pass met a graph that it can't go on with."""

    CODE = "E0400"
    EXAMPLE = case(title="the graph can't be lowered", why="the message says it here")


@dataclass(frozen=True, kw_only=True)
class PassFailed(Diagnostic):
    """A pass met something that it should never meet: a bug in hbc, which a reproducer helps to find."""

    CODE = "E0401"
    TITLE = "pass {name!r} failed: {message}"
    WHY = "this is a bug in hbc, not in the model"
    EXAMPLE = case(name="fuse-conv", message="KeyError: 3", hint="report it with the files in hbc-crash")
    name: str
    message: str


@dataclass(frozen=True, kw_only=True)
class PromiseBroken(Diagnostic):
    """A stage of the pipeline ended without what it promises (`ensures`, `forbids`): a bug in hbc."""

    CODE = "E0402"
    TITLE = "stage {stage!r} broke its promise: {message}"
    WHY = "this is a bug in hbc, not in the model"
    EXAMPLE = case(
        stage="schedule", message="two tensors share bytes of the arena", hint="report it with the files in hbc-crash"
    )
    stage: str
    message: str


@dataclass(frozen=True, kw_only=True)
class ScaleOutOfRange(Diagnostic):
    """The ratio of an op's scales leaves what a multiplier of 15 bits and a shift of 0 to 31 can express."""

    CODE = "E0403"
    EXAMPLE = case(
        title="conv2d 'Conv_3' cannot be requantised: the ratio 3.1e+09 is beyond the fixed-point range",
        why="scales: x: (0.05,); operand: (0.01,); y: (1e-12,)",
        hint="calibrate the result 'y' again; its scale does not suit its operands' scales",
    )


@dataclass(frozen=True, kw_only=True)
class BadPlan(Diagnostic):
    """The memory plan lets two tensors share bytes while both are needed, or leaves the arena: a bug in hbc."""

    CODE = "E0404"
    EXAMPLE = case(title="'a' and 'b' overlap in the arena while both are needed")


@dataclass(frozen=True, kw_only=True)
class NotEmitted(Diagnostic):
    """The lowered graph isn't one that can be written as a program."""

    CODE = "E0500"
    EXAMPLE = case(title="output 'y' has no buffer of its own; the place stage should have copied it")


@dataclass(frozen=True, kw_only=True)
class ZeroPointRefused(Diagnostic):
    """`--strict`: the model has tensors with a zero point, and the hardware multiplies without one."""

    CODE = "E0501"
    EXAMPLE = case(
        title="1 tensor with a zero point, which a real BPU would refuse",
        why="'x_quantized', zero point -11 (node 'Conv_3')",
        hint="quantise activations symmetrically (i8, zero point 0), or compile without --strict",
    )


@dataclass(frozen=True, kw_only=True)
class CpuRefused(Diagnostic):
    """`--no-cpu-fallback`: some nodes have no form for the BPU. The message says why for each."""

    CODE = "E0502"
    EXAMPLE = case(
        title="1 node would run on the CPU",
        why="Softmax 'Softmax_9': Softmax has no BPU form",
        hint="change these nodes, or allow the CPU (leave out --no-cpu-fallback)",
    )


@dataclass(frozen=True, kw_only=True)
class TooManyAxes(Diagnostic):
    """A tensor has more axes than a `.hbm` can describe."""

    CODE = "E0503"
    EXAMPLE = case(
        title="a tensor has 9 axes",
        loc="node 'Reshape_4'",
        why="its shape is 1x2x1x2x1x2x1x2x1, tensors of a .hbm have 8 axes at most",
        hint="merge axes that stay side by side by a Reshape",
    )


@dataclass(frozen=True, kw_only=True)
class NoCpuForm(Diagnostic):
    """A node that must run on the CPU can't be written as ONNX in the opset of its segment."""

    CODE = "E0504"
    EXAMPLE = case(
        title="max_pool of node 'MaxPool_2' can't run on the CPU: dilated windows of this pool came with opset 10",
        hint="export the model in a newer opset",
    )


@dataclass(frozen=True, kw_only=True)
class RuntimeRefused(Diagnostic):
    """ONNX Runtime takes none of a node that only it could run."""

    CODE = "E0505"
    EXAMPLE = case(title="ONNX Runtime refuses node 'Foo_1': Foo is not a registered function/op")


@dataclass(frozen=True, kw_only=True)
class TileTooLarge(Diagnostic):
    """The smallest tile of an instruction doesn't fit the march's on-chip memory: no command stream can be made."""

    CODE = "E0506"
    EXAMPLE = case(
        title="grid_sample cannot be cut into tiles that fit on-chip memory",
        loc="node 'GridSample_2'",
        why="the smallest tile of its result, 1x1x1x1, takes 1.4 MiB\non chip, bernoulli2 has 1.0 MiB. It reads\n"
        "1.4 MiB of 'image' (1x720x1024x1 of 1x720x1024x64)",
        hint="make what it reads at once smaller (reduce in two steps, sample a smaller image), or take a larger march",
    )
