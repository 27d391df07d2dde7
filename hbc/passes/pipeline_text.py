"""Pipelines as text: `fuse-conv{max-users=1},dce` ⇄ passes. A pass's options are its fields, with `-` for `_`."""

from __future__ import annotations

import enum
import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields

from hbc.diagnostics import BadPipeline, OptionError, UnknownName, nearest

from .base import Pass

Registry = Mapping[str, type[Pass]]
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_OPTION = re.compile(r'\s*([A-Za-z][A-Za-z0-9_-]*)(?:\s*=\s*("(?:[^"\\]|\\.)*"|\[[^\]]*\]|[^\s,{}\[\]"]+))?\s*(,?)')
_BOOLS = {"true": True, "false": False}


def parse_pipeline(text: str, registry: Registry) -> tuple[Pass, ...]:
    """The passes that `text` names; OptionError for an unknown name, option or value, with what would be right."""
    passes = []
    at = 0
    while True:
        at = _blank(text, at)
        name = _NAME.match(text, at)
        if name is None:
            raise _malformed(text, at, "a pass's name")
        given: dict[str, str] = {}
        at = _blank(text, name.end())
        if text.startswith("{", at):
            given, at = _options(text, at + 1)
        passes.append(make_pass(name[0], given, registry))
        if at == len(text):
            return tuple(passes)
        if text[at] != ",":
            raise _malformed(text, at, "',' or the end")
        at += 1


def make_pass(name: str, given: Mapping[str, str], registry: Registry) -> Pass:
    """One pass from its name and the texts of its options."""
    if name not in registry:
        why = f"passes are {', '.join(sorted(registry))}"
        raise OptionError(UnknownName(kind="pass", name=name, why=why, hint=nearest(name, registry)))
    cls = registry[name]
    hints = typing.get_type_hints(cls)
    known = {_written(f.name): f.name for f in fields(cls) if f.init}
    values: dict[str, object] = {}
    for option, text in given.items():
        if option not in known:
            why = f"its options are {', '.join(known)}" if known else "it has no options"
            hint = nearest(option, known)
            raise OptionError(UnknownName(kind=f"option of {name!r}", name=option, why=why, hint=hint))
        try:
            values[known[option]] = read_value(text, hints[known[option]])
        except ValueError as error:
            raise OptionError(BadPipeline(message=f"option {option!r} of pass {name!r}: {error}")) from None
    missing = [_written(f.name) for f in fields(cls) if _is_required(f) and f.name not in values]
    if missing:
        raise OptionError(BadPipeline(message=f"pass {name!r} needs option {missing[0]!r}"))
    try:
        return cls(**values)
    except ValueError as error:
        raise OptionError(BadPipeline(message=f"pass {name!r}: {error}")) from None


def print_pipeline(passes: Iterable[Pass]) -> str:
    """The text that `parse_pipeline` reads back; options at their defaults are left out."""
    return ",".join(map(print_pass, passes))


def print_pass(p: Pass) -> str:
    """`fuse-conv{max-users=1}`."""
    options = [
        f"{_written(f.name)}={print_value(getattr(p, f.name))}"
        for f in fields(p)
        if f.init and (_is_required(f) or getattr(p, f.name) != _default(f))
    ]
    return f"{p.name}{{{' '.join(options)}}}" if options else p.name


# ---- option values


def read_value(text: str, hint: object) -> object:
    """`text` as a value of the annotated type; ValueError, saying what it should be, where it is none."""
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        return _read_optional(text, typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        if not (text.startswith("[") and text.endswith("]")):
            msg = f"{text!r} is not a list, as in [1,2]"
            raise ValueError(msg)
        items = [t.strip() for t in text[1:-1].split(",")] if text[1:-1].strip() else []
        return tuple(read_value(t, typing.get_args(hint)[0]) for t in items)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        members = {m.name.lower(): m for m in hint}
        return _pick(text.lower(), members)
    if hint is bool:
        return _pick(text, _BOOLS)
    if hint is str:
        return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text
    if hint not in {int, float}:
        msg = f"a {hint} cannot be given as text"
        raise ValueError(msg)
    try:
        return int(text) if hint is int else float(text)
    except ValueError:
        msg = f"{text!r} is not {'an int' if hint is int else 'a float'}"
        raise ValueError(msg) from None


def print_value(value: object) -> str:
    """The text of an option's value."""
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{','.join(map(print_value, value))}]"
    if isinstance(value, str) and not re.fullmatch(r'[^\s,{}\[\]"=]+', value):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


def _read_optional(text: str, hints: tuple[object, ...]) -> object:
    if text == "none" and type(None) in hints:
        return None
    problems = []
    for hint in hints:
        if hint is not type(None):
            try:
                return read_value(text, hint)
            except ValueError as error:
                problems.append(str(error))
    raise ValueError("; ".join(problems))


def _pick(text: str, members: Mapping[str, object]) -> object:
    if text not in members:
        msg = f"{text!r} is none of {', '.join(members)}"
        raise ValueError(msg)
    return members[text]


# ---- text


def _options(text: str, at: int) -> tuple[dict[str, str], int]:
    """The options from `at` to the closing brace, and the place behind it."""
    given: dict[str, str] = {}
    while not text.startswith("}", _blank(text, at)):
        match = _OPTION.match(text, at)
        if match is None:
            raise _malformed(text, _blank(text, at), "an option, as in max-users=1, or '}'")
        if match[1] in given:
            raise _malformed(text, match.start(1), f"{match[1]!r} once")
        given[match[1]] = "true" if match[2] is None else match[2]
        at = match.end()
    return given, _blank(text, _blank(text, at) + 1)


def _blank(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _malformed(text: str, at: int, expected: str) -> OptionError:
    found = repr(text[at : at + 20]) if at < len(text) else "the end"
    message = f"expected {expected}, found {found}"
    return OptionError(BadPipeline(message=message, excerpt=(text, " " * at + "^") if text.isprintable() else ()))


def _written(field: str) -> str:
    return field.replace("_", "-")


def _is_required(field: typing.Any) -> bool:
    return field.init and field.default is MISSING and field.default_factory is MISSING


def _default(field: typing.Any) -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()
