"""The configuration from a file or a mapping, with errors that name the key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hbc.diagnostics import BadQuantizeConfig, error, nearest

from .errors import QuantizeError

if TYPE_CHECKING:
    from .config import QuantizeConfig

EXTRA = "pip install 'hbc[quantize]'"


def read_config(source: str | Path | Mapping[str, Any] | QuantizeConfig | None) -> QuantizeConfig:
    """The configuration that `source` is: a `.yaml` or `.json` file, a mapping, one that is made, None for defaults.

    QuantizeError names the file, the key, its value and what it may be.
    """
    try:
        from pydantic import ValidationError

        from .config import QuantizeConfig
    except ImportError as err:
        raise error(QuantizeError, "quantising needs pydantic", why=str(err), hint=EXTRA) from err
    if isinstance(source, QuantizeConfig):
        return source
    where = "config"
    if isinstance(source, str | Path):
        where, source = str(source), _loaded(Path(source))
    try:
        return QuantizeConfig.model_validate({} if source is None else dict(source))
    except ValidationError as err:
        raise _wrong(err.errors()[0], where) from err


def _wrong(found: Any, where: str) -> QuantizeError:
    path = [str(p) for p in found["loc"]]
    key = ".".join(path)
    if found["type"] == "extra_forbidden":
        known = _keys_beside(path[:-1])
        hint = nearest(path[-1], known) or f"keys are {', '.join(known)}"
        return error(QuantizeError, f"there is no key {key!r}", where=where, hint=hint, kind=BadQuantizeConfig)
    why = str(found["msg"]).removeprefix("Value error, ")
    title = f"{key} is {found['input']!r}"
    hint = "see the table of keys in docs/quantize.md"
    return error(QuantizeError, title[:200], where=where, why=why, hint=hint, kind=BadQuantizeConfig)


def _keys_beside(path: list[str]) -> list[str]:
    from .config import key_rows

    prefix = "".join(f"{p}." for p in path)
    names = [row[0] for row in key_rows()]
    if path[:1] == ["tensors"]:
        prefix = "tensors.NAME."
    return [n.removeprefix(prefix) for n in names if n.startswith(prefix) and "." not in n.removeprefix(prefix)]


def _loaded(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        why = getattr(err, "strerror", None) or str(err)
        title = "the configuration can't be read"
        raise error(QuantizeError, title, where=str(path), why=why, kind=BadQuantizeConfig) from err
    try:
        loaded = json.loads(text) if path.suffix.lower() == ".json" else _yaml(text)
    except (ValueError, RecursionError) as err:
        why = " ".join(str(err).split())[:200]
        title = "this is no sound YAML or JSON"
        raise error(QuantizeError, title, where=str(path), why=why, kind=BadQuantizeConfig) from err
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        why = f"it holds {type(loaded).__name__}"
        title = "a configuration holds keys and values"
        raise error(QuantizeError, title, where=str(path), why=why, kind=BadQuantizeConfig)
    return {str(k): v for k, v in loaded.items()}


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError as err:
        hint = f"{EXTRA}, or write JSON"
        raise error(QuantizeError, "reading YAML needs PyYAML", why=str(err), hint=hint) from err
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as err:
        mark = getattr(err, "problem_mark", None)
        at = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        raise ValueError(f"{at}{getattr(err, 'problem', None) or err}") from err
