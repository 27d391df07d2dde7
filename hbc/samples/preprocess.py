"""How an image becomes an input: `resize=320x320,mean=127,scale=1/128,color=rgb`, or these keys in YAML or JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from hbc.diagnostics import error, nearest

from .base import SampleError

if TYPE_CHECKING:
    from .spec import Preprocess

EXTRA = "pip install 'hbc[images]'"
SUFFIXES = {".yaml", ".yml", ".json"}
_EXAMPLE = "write it as resize=320x320,color=rgb,mean=127,scale=1/128"


def parse_preprocess(text: str) -> Preprocess:
    """The specification that `text` is, or that the `.yaml`, `.yml` or `.json` file of this name holds.

    Raises SampleError naming the key, its value and what it may be.
    """
    path = Path(text)
    if path.suffix.lower() in SUFFIXES:
        return checked(_file(path), str(path))
    given: dict[str, object] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            raise error(SampleError, f"in --preprocess, {item!r} has no value", hint=_EXAMPLE)
        if key in given:
            raise error(SampleError, f"in --preprocess, {key!r} stands twice", hint=_EXAMPLE)
        given[key] = value
    return checked(given, "--preprocess")


def checked(given: dict[str, object], where: str) -> Preprocess:
    """The specification with these fields. Raises SampleError, where pydantic isn't installed too."""
    try:
        from pydantic import ValidationError

        from .spec import Preprocess
    except ImportError as err:
        raise error(SampleError, "a preprocessing specification needs pydantic", why=str(err), hint=EXTRA) from err
    keys = list(Preprocess.model_fields)
    for key in given:
        if key not in keys:
            hint = f"{nearest(key, keys, limit=1)} Keys are {', '.join(keys)}".strip()
            raise error(SampleError, f"there is no preprocessing key {key!r}", where=where, hint=hint)
    try:
        return Preprocess.model_validate(given)
    except ValidationError as err:
        first = err.errors()[0]
        key = str(first["loc"][0]) if first["loc"] else ""
        title = f"{key} is {given.get(key)!r}" if key else "the keys contradict each other"
        why = str(first["msg"]).removeprefix("Value error, ")
        raise error(SampleError, title, where=where, why=why, hint=_EXAMPLE) from err


def _file(path: Path) -> dict[str, object]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        why = getattr(err, "strerror", None) or str(err)
        raise error(SampleError, "the preprocessing file can't be read", where=str(path), why=why) from err
    try:
        loaded = json.loads(text) if path.suffix.lower() == ".json" else _yaml(text)
    except (ValueError, RecursionError) as err:
        why = " ".join(str(err).split())[:200]
        raise error(SampleError, "this is no sound JSON or YAML", where=str(path), why=why) from err
    if not isinstance(loaded, dict):
        why = f"it holds {type(loaded).__name__}"
        raise error(SampleError, "a preprocessing file holds keys and values", where=str(path), why=why)
    return {str(k): v for k, v in loaded.items()}


def _yaml(text: str) -> object:
    try:
        import yaml
    except ImportError as err:
        raise error(SampleError, "reading YAML needs PyYAML", why=str(err), hint=f"{EXTRA}, or write JSON") from err
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as err:
        raise ValueError(str(err)) from err
