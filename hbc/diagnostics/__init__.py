"""What hbc says when something is wrong, and the tree of what it raises.

    HbcError                 cannot go on; carries a Diagnostic
    ├── FrontendError        the model file cannot be read or taken in
    ├── ParseError           `.hbir` text is malformed
    ├── VerifyError          an op breaks a constraint of the op table
    ├── PassError            a pass failed on a graph
    ├── EmitError            a graph cannot become a program
    └── OptionError          an option has an impossible value

A rule that says "not on the BPU" returns a `Rejection`; it is not an error.
Bugs stay AssertionError until a pass manager labels them as ours.
Every error has a code; the classes are in `codes_*.py`, by hundreds, and `catalogue` lists them.
"""

from __future__ import annotations

from .catalogue import catalogue, codes, describe, entries
from .codes_compile import (
    BadPlan,
    ConstraintBroken,
    CpuRefused,
    NoCpuForm,
    NotEmitted,
    PassFailed,
    PassRefused,
    PromiseBroken,
    RuntimeRefused,
    ScaleOutOfRange,
    TooManyAxes,
    ZeroPointRefused,
)
from .codes_data import (
    AlreadyQuantised,
    BadCalibration,
    BadQuantizeConfig,
    BadSamples,
    CannotCompare,
    CannotProbe,
    CannotQuantize,
    MissingSample,
    NotFinite,
)
from .codes_model import (
    BadExternalData,
    BadModel,
    BadModelInput,
    BadModelOutput,
    BadNode,
    BadQuantization,
    BadTensor,
    NoModelFile,
    NoOnnx,
    NotAModel,
    NotTaken,
    OpenSizes,
    SeveralNodes,
    ShapeClash,
    TooLarge,
    UnknownSize,
)
from .codes_text import (
    BadAttribute,
    BadConstant,
    BadFile,
    BadOperands,
    BadText,
    BadType,
    BadValueName,
    Unexpected,
    UnknownOp,
)
from .codes_usage import (
    BadOption,
    BadPipeline,
    BadRunInput,
    BadShape,
    BadUsage,
    CannotWrite,
    Failed,
    FileTrouble,
    InternalError,
    OutOfMemory,
    UnknownName,
)
from .errors import (
    EmitError,
    FrontendError,
    HbcError,
    OptionError,
    ParseError,
    PassError,
    VerifyError,
    error,
)
from .message import Diagnostic, Rejection, from_text, nearest, render

__all__ = [
    "AlreadyQuantised",
    "BadAttribute",
    "BadCalibration",
    "BadConstant",
    "BadExternalData",
    "BadFile",
    "BadModel",
    "BadModelInput",
    "BadModelOutput",
    "BadNode",
    "BadOperands",
    "BadOption",
    "BadPipeline",
    "BadPlan",
    "BadQuantization",
    "BadQuantizeConfig",
    "BadRunInput",
    "BadSamples",
    "BadShape",
    "BadTensor",
    "BadText",
    "BadType",
    "BadUsage",
    "BadValueName",
    "CannotCompare",
    "CannotProbe",
    "CannotQuantize",
    "CannotWrite",
    "ConstraintBroken",
    "CpuRefused",
    "Diagnostic",
    "EmitError",
    "Failed",
    "FileTrouble",
    "FrontendError",
    "HbcError",
    "InternalError",
    "MissingSample",
    "NoCpuForm",
    "NoModelFile",
    "NoOnnx",
    "NotAModel",
    "NotEmitted",
    "NotFinite",
    "NotTaken",
    "OpenSizes",
    "OptionError",
    "OutOfMemory",
    "ParseError",
    "PassError",
    "PassFailed",
    "PassRefused",
    "PromiseBroken",
    "Rejection",
    "RuntimeRefused",
    "ScaleOutOfRange",
    "SeveralNodes",
    "ShapeClash",
    "TooLarge",
    "TooManyAxes",
    "Unexpected",
    "UnknownName",
    "UnknownOp",
    "UnknownSize",
    "VerifyError",
    "ZeroPointRefused",
    "catalogue",
    "codes",
    "describe",
    "entries",
    "error",
    "from_text",
    "nearest",
    "render",
]
