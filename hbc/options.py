"""What a compilation is told: one frozen value, checked once, before the first line of work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from hbc.diagnostics import BadShape, OptionError, UnknownName, error, nearest
from hbc.example import examples_of
from hbc.ir.semantics import ARITHS, MARCHES

LEVELS = ("O0", "O1", "O2", "O3")  # of command streams (docs/commands.md)
OBJECTIVES = ("latency", "bandwidth", "balance")
MARCH_ALIASES = {"nash": "nash-e"}
Shapes = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class CompileOptions:
    """Everything that changes what comes out of a compilation.

    `march`: one of MARCHES, or `nash` for `nash-e`. `arith`: `bpu` (the chip's arithmetic) or `onnx` (ONNX's text).
    `shapes`: shapes of inputs that the model leaves open; a mapping is taken too. `strict`: what a real BPU would
    refuse is an error. `cpu_fallback`: False makes an op that the BPU doesn't take an error. `name`: the model's name
    in the `.hbm`; by default the file's. `aot`: put machine code for this machine's CPU into the program, which runs
    where a session is told to trust it. `fast_perf`: quantise by made-up scales, for estimates of time alone.

    `example`: of a PyTorch model, whose file tells no sizes: a shape per input, `(1, 3, 224, 224)` or `"ids=1x16:i64"`,
    or an array of that shape and dtype; a mapping by input name is taken too. `output_names`: what to call its outputs.

    `optimize_level`: how hard to work on the command streams, O0 to O3; `objective`: what for, `latency`, `bandwidth`
    or `balance`. Neither changes an integer.

    Raises OptionError naming the option, the value and the nearest thing that would do.
    """

    march: str = "nash"
    arith: str = "bpu"
    shapes: Shapes | Mapping[str, Iterable[int]] = ()
    strict: bool = False
    cpu_fallback: bool = True
    name: str | None = None
    aot: bool = False
    example: Any = ()
    output_names: Sequence[str] = ()
    fast_perf: bool = False
    optimize_level: str = "O2"
    objective: str = "latency"

    def __post_init__(self) -> None:
        object.__setattr__(self, "march", march_named(self.march))
        object.__setattr__(self, "arith", pick("arithmetic", self.arith, ARITHS))
        object.__setattr__(self, "optimize_level", pick("optimize level", self.optimize_level, LEVELS))
        object.__setattr__(self, "objective", pick("objective", self.objective, OBJECTIVES))
        object.__setattr__(self, "shapes", _checked_shapes(self.shapes))
        object.__setattr__(self, "example", examples_of(self.example))
        object.__setattr__(self, "output_names", _checked_names(self.output_names))
        _require_bool("strict", self.strict)
        _require_bool("cpu_fallback", self.cpu_fallback)
        _require_bool("aot", self.aot)
        _require_bool("fast_perf", self.fast_perf)
        if self.name is not None and not _is_text(self.name):
            raise error(OptionError, f"name is {self.name!r}", hint="give a text that isn't empty")

    @staticmethod
    def of(**given: object) -> CompileOptions:
        """Options from keywords; OptionError, not TypeError, for a keyword that there is none of."""
        known = [f.name for f in fields(CompileOptions)]
        for key in given:
            pick("option", key, known)
        return CompileOptions(**given)  # type: ignore[arg-type]

    @property
    def shape_map(self) -> dict[str, tuple[int, ...]]:
        """`shapes` by input name."""
        return dict(self.shapes)  # type: ignore[arg-type] # __post_init__ left pairs of names and tuples


def march_named(name: str) -> str:
    """The march that `name` means (aliases resolved); OptionError with the nearest name and the list otherwise."""
    known = [*MARCHES, *MARCH_ALIASES]
    picked = pick("march", name, known)
    return MARCH_ALIASES.get(picked, picked)


def pick(what: str, name: object, known: Iterable[str]) -> str:
    """`name` where it is one of `known`; OptionError that offers the nearest and lists them all otherwise."""
    names = list(known)
    if isinstance(name, str) and name in names:
        return name
    guess = nearest(str(name), names, limit=1)
    hint = f"{guess} Known are {', '.join(names)}" if guess else f"one of {', '.join(names)}"
    raise OptionError(UnknownName(kind=what, name=str(name), title=f"there is no {what} {name!r}", hint=hint))


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """`NAME=1x3x224x224` → (name, dims). The name may hold `=`; a bare `NAME=` is a scalar."""
    name, equals, dims = text.rpartition("=")
    if not equals or not name:
        raise error(OptionError, f"shape {text!r} has no name", hint="write it as NAME=1x3x224x224", kind=BadShape)
    try:
        sizes = tuple(int(d) for d in dims.replace(",", "x").split("x")) if dims else ()
    except ValueError:
        hint = f"write it as {name}=1x3x224x224"
        raise error(
            OptionError, f"in shape {text!r}, {dims!r} isn't a list of sizes", hint=hint, kind=BadShape
        ) from None
    return _checked_shape(name, sizes)


def _checked_shapes(shapes: Shapes | Mapping[str, Iterable[int]]) -> Shapes:
    pairs = shapes.items() if isinstance(shapes, Mapping) else shapes
    out: dict[str, tuple[int, ...]] = {}
    for name, dims in pairs:
        key, sizes = _checked_shape(name, dims)
        if out.setdefault(key, sizes) != sizes:
            raise error(
                OptionError, f"input {key!r} is given two shapes, {_text(out[key])} and {_text(sizes)}", kind=BadShape
            )
    return tuple(out.items())


def _checked_shape(name: object, dims: Iterable[int]) -> tuple[str, tuple[int, ...]]:
    if not isinstance(name, str):
        raise error(OptionError, f"shapes go by input name, not by {name!r}", kind=BadShape)
    try:
        sizes = tuple(int(d) for d in dims)
    except (TypeError, ValueError):
        hint = "give a sequence of sizes such as (1, 3, 224, 224)"
        raise error(OptionError, f"the shape of {name!r} is {dims!r}", hint=hint, kind=BadShape) from None
    if any(d < 1 for d in sizes):
        raise error(
            OptionError, f"the shape of {name!r} is {_text(sizes)}", why="every size must be 1 or more", kind=BadShape
        )
    return name, sizes


def _is_text(name: object) -> bool:
    """True for text that can be written: on a command line, bytes that are no UTF-8 become lone surrogates."""
    return isinstance(name, str) and bool(name.strip()) and not any("\ud800" <= c <= "\udfff" for c in name)


def _require_bool(option: str, value: object) -> None:
    if not isinstance(value, bool):
        raise error(OptionError, f"{option} is {value!r}", hint="give True or False")


def _checked_names(names: object) -> tuple[str, ...]:
    found = (
        tuple(names.split(",")) if isinstance(names, str) else tuple(names) if isinstance(names, Iterable) else (names,)
    )
    wrong = [name for name in found if not _is_text(name)]
    if wrong or len(set(found)) < len(found):
        what = f"output_names is {names!r}"
        raise error(OptionError, what, hint="give a list of distinct names, none of them empty")
    return tuple(str(name).strip() for name in found)


def _text(dims: tuple[int, ...]) -> str:
    return "x".join(map(str, dims)) or "scalar"
