"""E00: the command line, options, and files that are written."""

from __future__ import annotations

from dataclasses import dataclass

from .message import Diagnostic, case


@dataclass(frozen=True, kw_only=True)
class UnknownName(Diagnostic):
    """A pass, an option of a pass, a stage, a march or a code was asked for under a name that hbc doesn't know."""

    CODE = "E0001"
    TITLE = "there is no {kind} named {name!r}"
    EXAMPLE = case(kind="pass", name="fuse-cnov", hint="did you mean 'fuse-conv'?")
    kind: str
    name: str


@dataclass(frozen=True, kw_only=True)
class BadPipeline(Diagnostic):
    """The text of a pass pipeline is malformed, or gives an option a value of the wrong kind."""

    CODE = "E0002"
    TITLE = "{message}"
    HINT = "write passes as in: fuse-conv{{max-users=1}},dce"
    EXAMPLE = case(message="option 'max-users' of pass 'fuse-conv': 'two' is no integer")
    message: str


@dataclass(frozen=True, kw_only=True)
class BadOption(Diagnostic):
    """An option of compiling has a value that it can't have."""

    CODE = "E0003"
    EXAMPLE = case(title="strict is 'yes'", hint="give True or False")


@dataclass(frozen=True, kw_only=True)
class BadShape(Diagnostic):
    """A shape given for an input is malformed, or no shape at all."""

    CODE = "E0004"
    EXAMPLE = case(title="shape '1x3' has no name", hint="write it as NAME=1x3x224x224")


@dataclass(frozen=True, kw_only=True)
class CannotWrite(Diagnostic):
    """The place for the output is a folder, or in a folder that isn't there, or may not be written."""

    CODE = "E0005"
    EXAMPLE = case(title="the output's folder doesn't exist", loc="out/model.hbm", hint="mkdir -p out")


@dataclass(frozen=True, kw_only=True)
class BadUsage(Diagnostic):
    """The command line has an unknown command or option, a malformed value, or options that exclude each other."""

    CODE = "E0006"
    EXAMPLE = case(title="No such option: --marhc (Possible options: --march)", hint="hbc compile --help")


@dataclass(frozen=True, kw_only=True)
class FileTrouble(Diagnostic):
    """The operating system refuses a file: no permission, no space left, a broken disk."""

    CODE = "E0007"
    EXAMPLE = case(title="No space left on device", loc="model.hbm")


@dataclass(frozen=True, kw_only=True)
class OutOfMemory(Diagnostic):
    """The machine has too little memory for this model."""

    CODE = "E0008"
    TITLE = "out of memory"
    HINT = "a smaller --shape, or a larger machine"
    EXAMPLE = case(why="Unable to allocate 12.0 GiB for an array with shape (1, 64, 4096, 12288)")


@dataclass(frozen=True, kw_only=True)
class InternalError(Diagnostic):
    """hbc met something that it should never meet. The files that the message names reproduce it."""

    CODE = "E0009"
    TITLE = "internal error: {message}"
    WHY = "this is a bug in hbc, not in your model"
    EXAMPLE = case(message="AssertionError", hint="report it with the files in /tmp/hbc-crash-1x2y3z")
    message: str


@dataclass(frozen=True, kw_only=True)
class BadRunInput(Diagnostic):
    """The inputs given to `hbc run` don't cover the model's inputs, or name one that it doesn't have."""

    CODE = "E0010"
    EXAMPLE = case(
        title="no value for 1 input",
        why="'image': f32[1x3x224x224]",
        hint="--input NAME=x.npy, --input x.npz, or --random 0",
    )


@dataclass(frozen=True, kw_only=True)
class Failed(Diagnostic):
    """Anything that has no code of its own; the message says all there is to say."""

    CODE = "E0099"
    EXAMPLE = case(title="the model can't be compiled", why="the message says it here")
