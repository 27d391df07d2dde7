"""One message: its parts, its wording, its rendering."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar


@dataclass(frozen=True)
class Rejection:
    """Why an op may not run on the BPU, and what would let it."""

    reason: str
    hint: str = ""


def case(**facts: str) -> Mapping[str, Any]:
    """The fields of one case, for EXAMPLE."""
    return facts


@dataclass(frozen=True)
class Diagnostic:
    """One message: what is wrong (`title`), where, why, and what to try.

    `excerpt` shows the place itself (a source line and a caret, a type); `trail` says what hbc was doing. Codes group
    by hundreds: E00 command line and files, E01 text, E02 front end, E03 verifier, E04 passes, E05 emission, E06
    samples, E07 check, E08 quantising, E09 the kit for PyTorch, R01 the runtime; E0000 stands for none.

    A subclass stands for one code. Where one sentence fits all its cases it names its facts as typed fields and words
    them in TITLE, WHY and HINT, format strings over those fields; a `title`, `why` or `hint` that is given wins over
    the template. Where it doesn't, TITLE is empty and the place that raises it gives the words (`error(…, kind=…)`).
    EXAMPLE holds one case's fields, for the docs.
    """

    code: str = "E0000"
    title: str = ""
    loc: str = ""
    why: str = ""
    hint: str = ""
    notes: tuple[str, ...] = ()
    excerpt: tuple[str, ...] = ()
    trail: str = ""

    CODE: ClassVar[str] = ""
    TITLE: ClassVar[str] = ""
    WHY: ClassVar[str] = ""
    HINT: ClassVar[str] = ""
    EXAMPLE: ClassVar[Mapping[str, Any]] = case()

    def __post_init__(self) -> None:
        if not self.CODE:
            return
        facts = {f.name: getattr(self, f.name) for f in fields(self)}
        object.__setattr__(self, "code", self.CODE)
        for name, template in (("title", self.TITLE), ("why", self.WHY), ("hint", self.HINT)):
            if not facts[name]:
                object.__setattr__(self, name, template.format_map(facts))


def nearest(name: str, known: Iterable[str], limit: int = 3) -> str:
    """`did you mean 'x' or 'y'?` for the known names close to `name`, or "" where none is."""
    short = [k for k in itertools.islice(known, 5000) if len(k) <= 100]  # bounds the time that odd input can take
    close = difflib.get_close_matches(name[:100], short, n=limit, cutoff=0.6)
    return f"did you mean {' or '.join(repr(c) for c in close)}?" if close else ""


# ---- rendering

_PLAIN_LABEL = re.compile(r"\s*=?\s*(why|try|in|note|-->):?\s*(.*)")
_BOLD_RED, _BLUE, _BOLD, _RESET = "\x1b[1;31m", "\x1b[34m", "\x1b[1m", "\x1b[0m"


def render(diagnostic: Diagnostic, *, color: bool = False) -> str:
    """The message as text of several lines, without a newline at the end.

    error[E0203]: weights of this convolution are not quantised
      --> yolov5s.onnx: node 'Conv_142' (Conv)
       |  tensor<255x128x1x1xf32>
       = why:  nash multiplies i8 by i8; an f32 weight has no scale
       = try:  add QuantizeLinear/DequantizeLinear on input 1
       = in:   pass 'fold-qdq' (stage quantize, 6 of 21)
    """
    head = "error" if diagnostic.code == "E0000" else f"error[{diagnostic.code}]"
    body = _body(diagnostic)
    if not color:
        return "\n".join([f"{head}: {diagnostic.title}", *body])
    marked = [f"{_BLUE}{line[:5]}{_RESET}{line[5:]}" for line in body]
    return "\n".join([f"{_BOLD_RED}{head}{_RESET}{_BOLD}: {diagnostic.title}{_RESET}", *marked])


def _body(d: Diagnostic) -> list[str]:
    lines = [f"  --> {d.loc}"] if d.loc else []
    lines += [f"   |  {line}" for line in d.excerpt]
    labelled = [("why:", d.why), ("try:", d.hint), ("in:", d.trail), *(("note:", n) for n in d.notes)]
    for label, text in labelled:
        first, *rest = text.split("\n")
        if text:
            lines.append(f"   = {label:5} {first}")
            lines += [f"     {'':5} {line}" for line in rest]
    return lines


def from_text(text: str, kind: type[Diagnostic] = Diagnostic) -> Diagnostic:
    """A diagnostic of a plain text: its first line is the title; lines `--> …`, `why: …`, `try: …` and `in: …` go to
    their fields, the other lines are notes. `kind` gives the code.
    """
    title, *rest = text.split("\n")
    found: dict[str, list[str]] = {"why": [], "try": [], "-->": [], "in": [], "note": []}
    for line in rest:
        match = _PLAIN_LABEL.fullmatch(line)
        if match:
            found[match[1]].append(match[2])
        elif line.strip():
            found["note"].append(line.strip())
    why, hint, loc, trail = ("\n".join(found[k]) for k in ("why", "try", "-->", "in"))
    return kind(title=title, loc=loc, why=why, hint=hint, trail=trail, notes=tuple(found["note"]))
