"""Machine code for a model: found where it was made before, else made."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..program import Model, NativeCode
from . import cache, entry, keys
from .code import Code
from .host import Host

_WORTH_KEEPING = 0.1  # seconds of code generation below which the cache is not bothered


def code_of(model: Model, machine: Host, natives: Sequence[NativeCode] = ()) -> Code:
    """The machine code of a model: from `natives` or the cache where it is there and sound, else made (and kept)."""
    folder = cache.folder()
    content = keys.fingerprint(model) if natives or folder is not None else ""
    found = find(content, machine, natives)
    if found is not None:
        return found
    from .assembly import assemble

    start = time.perf_counter()
    code = assemble(model, machine)
    if folder is not None and time.perf_counter() - start >= _WORTH_KEEPING:
        cache.store(folder, keys.key_of(content, machine), code)
    return code


def find(content: str, machine: Host, natives: Sequence[NativeCode], sound: cache.State | None = None) -> Code | None:
    """Sound code, made before, for the model with fingerprint `content`: from `natives`, else from the cache.

    `sound` is a state in which the cache's entry is known to be so.
    """
    if natives:
        key = keys.portable_key_of(content, machine)
        for native in natives:
            code = entry.read(native.data.data, key) if native.key == key else None
            if code is not None:
                return code
    folder = cache.folder()
    return None if folder is None else cache.load(folder, keys.key_of(content, machine), sound)


def state(content: str, machine: Host) -> cache.State | None:
    """The state of the cache's entry for the model with fingerprint `content`; None where there is none."""
    folder = cache.folder()
    return None if folder is None else cache.state(folder, keys.key_of(content, machine))


def is_made(content: str, machine: Host, natives: Sequence[NativeCode]) -> bool:
    """True where `find` may find something."""
    folder = cache.folder()
    kept = folder is not None and cache.holds(folder, keys.key_of(content, machine))
    return kept or any(n.key == keys.portable_key_of(content, machine) for n in natives)
