"""From what a user names as a program to its model and the machine code for it, with as little reading as will do."""

from __future__ import annotations

import os
from functools import cached_property

from .cpu import CpuRunner
from .engines import JitEngine
from .errors import HbmFormatError, UnknownModel
from .outline import Outline, outline_of
from .program import CpuSegment, Model, Program
from .source import open_source

Source = bytes | bytearray | memoryview | str | os.PathLike[str] | Program


class Loaded:
    """A source, opened, and one of its models: `name`, or the only one. Each part is read once somebody asks for it.

    Raises HbmError for a file that cannot be opened; asking raises it where the program is not sound, or has no such
    model.
    """

    def __init__(self, source: Source, name: str | None) -> None:
        self.opened = None if isinstance(source, Program) else open_source(source)
        self.name = name
        if isinstance(source, Program):
            self.program = _checked(source)

    @cached_property
    def program(self) -> Program:
        """The program, read and checked."""
        from .hbm.reader import read_opened

        assert self.opened is not None
        return read_opened(self.opened)

    @cached_property
    def model(self) -> Model:
        """The model that is to run."""
        return _choose(self.program, self.name)

    @cached_property
    def outline(self) -> Outline:
        """What running it takes."""
        return outline_of(self.program, self.model)

    def runners(self, threads: int) -> dict[int, CpuRunner]:
        """Its CPU segments by number, ready to run. MissingDependency where they need ONNX Runtime."""
        numbered = enumerate(self.model.segments)
        return {i: CpuRunner(self.model, s, threads) for i, s in numbered if isinstance(s, CpuSegment)}

    def machine_code(self, threads: int, *, trust: bool) -> JitEngine:
        """An engine that runs the model's machine code, which may come from the file where that is trusted."""
        return self._recalled(threads, trust=trust) or self._built(threads, trust=trust)

    def _recalled(self, threads: int, *, trust: bool) -> JitEngine | None:
        """The engine where file and code are known already: nothing is read but the code."""
        from .jit import notes, recall

        note = notes.find(self.opened) if self.opened is not None else None
        if self.opened is None or note is None or self.name not in {None, note.outline.name}:
            return None
        natives = note.outline.natives if trust else ()
        before = None if natives else notes.entry_of(note.content)
        jit = recall(note.content, natives, threads, note.code)
        if jit is None:
            return None
        notes.renew(self.opened, note, before)
        self.outline = note.outline
        return JitEngine(note.outline, {}, jit)

    def _built(self, threads: int, *, trust: bool) -> JitEngine:
        from .jit import build, notes

        runners, outline = self.runners(threads), self.outline
        natives = outline.natives if trust else ()
        jit = build(self.model, threads, natives)
        if self.opened is not None:
            if len(self.program.models) == 1:
                notes.keep(self.opened, outline, self.model, sound=not natives)
            self.opened.release()
        return JitEngine(outline, runners, jit)


def _checked(program: Program) -> Program:
    from .hbm.checks import check_program

    try:
        check_program(program)
    except ValueError as err:
        msg = f"the program is not sound: {err}\n  try: report this as a bug of the compiler that made it"
        raise HbmFormatError(msg) from err
    return program


def _choose(program: Program, name: str | None) -> Model:
    names = [m.name for m in program.models]
    if name is None and len(names) == 1:
        return program.models[0]
    if name is not None and name in names:
        return program.models[names.index(name)]
    what = "the program has several models" if name is None else f"the program has no model {name!r}"
    msg = f"{what}; pass model= one of {', '.join(map(repr, names))}"
    raise UnknownModel(msg)
