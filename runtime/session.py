"""`Session`: a program, made ready to run on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import TracebackType

import numpy.typing as npt

from .binding import bind, bind_batches
from .engines import Array, Engine, JitEngine, ReferenceEngine
from .errors import OutOfMemory, SessionClosed
from .loading import Loaded, Source
from .march import border_rounding
from .program import Model, Program, TensorInfo

ENGINES = ("jit", "reference")
MAX_THREADS = 256  # each is a thread of the process that waits for work


class Session:
    """A model, ready to run. Several threads may call `run` at once; each run has its own memory.

    `source` is a path of a `.hbm` file, its bytes, or a Program. `threads` is how many cores one run may use.
    `engine` is "jit" (machine code) or "reference" (NumPy, slow): the same integers. `model` names one of several.
    `trust_native_code` lets machine code that the file brings run, where it fits this machine and this version: only
    for files whose maker you trust, as it may do anything. Otherwise that part of the file isn't looked at.
    Raises HbmError where the program is not sound, MissingDependency where a CPU segment needs ONNX Runtime.
    """

    def __init__(
        self,
        source: Source,
        threads: int = 1,
        engine: str = "jit",
        model: str | None = None,
        *,
        trust_native_code: bool = False,
    ) -> None:
        if engine not in ENGINES:
            msg = f"engine is {engine!r}; known are {', '.join(ENGINES)}"
            raise ValueError(msg)
        if not 1 <= threads <= MAX_THREADS:
            msg = f"threads is {threads}; a run takes 1 to {MAX_THREADS}"
            raise ValueError(msg)
        self._loaded = Loaded(source, model)
        self._threads = threads
        self._engine: Engine = (
            self._loaded.machine_code(threads, trust=trust_native_code) if engine == "jit" else self._reference
        )
        self._rounding = border_rounding(self._loaded.outline.march, self._loaded.outline.arith)
        self._running: list[None] = []  # an entry per run under way: append and pop are atomic
        self._closed = False

    @property
    def program(self) -> Program:
        """What was loaded, whole: of a file that was known already it is read now."""
        return self._loaded.program

    @property
    def model(self) -> Model:
        """The one of its models that runs."""
        return self._loaded.model

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """What `run` takes: name, shape, dtype, layout, scale, zero_point, axis."""
        return self._loaded.outline.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """What `run` gives, in the model's order. −1 in a shape is a size that depends on the data."""
        return self._loaded.outline.outputs

    def run(self, inputs: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
        """The model's outputs by name, as new arrays.

        `inputs` holds one array per input: of its shape, and of its dtype or, for a quantised or a float input, of any
        float dtype. An output of dynamic size comes in the size that this run made.

        Inputs may hold several batches, one behind the other: each n times as long on its first axis as its shape says.
        The outputs are then those of n runs, one behind the other, and with `threads` each thread takes whole batches.
        That needs a model all of whose inputs and outputs have the same size on their first axis. Raises InputMismatch
        where inputs do not fit.
        """
        self._enter()
        try:
            engine = self._engine
            if engine.direct is not None:
                found = engine.direct(inputs)
                if found is not None:
                    return found
            outputs = engine.run(*bind_batches(self.inputs, self.outputs, inputs, self._rounding))
            return {info.name: y for info, y in zip(self.outputs, outputs, strict=True)}
        except MemoryError as err:
            raise _out_of_memory(err) from err
        finally:
            self._leave()

    def intermediates(self, inputs: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
        """Every tensor that a run computes, inputs and outputs among them, by name: the reference engine's integers.

        A name that several tensors carry gets `#` and the tensor's index from the second one on.
        """
        self._enter()
        try:
            values = self._reference.values(bind(self.model.inputs, inputs, self._rounding))
        except MemoryError as err:
            raise _out_of_memory(err) from err
        finally:
            self._leave()
        named: dict[str, Array] = {}
        for i, y in sorted(values.items()):
            name = self.model.tensors[i].name
            named[f"{name}#{i}" if name in named else name] = y
        return named

    @cached_property
    def _reference(self) -> ReferenceEngine:
        engine = vars(self).get("_engine")
        runners = engine.runners if isinstance(engine, JitEngine) else self._loaded.runners(self._threads)
        return ReferenceEngine(self.model, runners)

    def close(self) -> None:
        """Give back the machine code and the memory; runs under way still finish. A closed session does not run."""
        self._closed = True
        if not self._running:
            self._engine.close()

    def __reduce__(self) -> str:
        msg = "a Session holds machine code and threads and cannot be pickled or copied; make one in each process"
        raise TypeError(msg)

    def __enter__(self) -> Session:  # noqa: PYI034 - typing.Self needs Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _enter(self) -> None:
        """A run begins. It is counted before it looks: either it sees the session closed, or `close` sees the run."""
        self._running.append(None)
        if self._closed:
            self._running.pop()
            msg = "the session is closed; make a new Session to run the model again"
            raise SessionClosed(msg)

    def _leave(self) -> None:
        """A run ends. Whoever leaves a closed session last closes the engine; closing it twice does no harm."""
        self._running.pop()
        if self._closed and not self._running:
            self._engine.close()


def _out_of_memory(err: MemoryError) -> OutOfMemory:
    return OutOfMemory(f"a run of this model needs more memory than this machine has{f' ({err})' if str(err) else ''}")
