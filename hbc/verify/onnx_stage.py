"""An ONNX model by ONNX Runtime as a stage: `ort`, `ort-optimized`, and a float model that was given as a file."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np

from hbc.backend.cpu.nodes import NodeInfo, NodeRunner
from hbc.backend.cpu.probe import Probe, ProbeError, make_session

from .facts import Facts
from .stage import Array, Given, Place, Sample, Step, same

CHUNK = 1 << 28  # bytes of tensors that one run hands out while this stage is walked


class OnnxStage:
    """One ONNX file. Values come from runs of the whole model with the optimiser off, a batch of tensors per run.

    Ops on given operands run node by node; where ONNX Runtime does not run a node by itself, `own` is None.
    """

    def __init__(self, model: Path, name: str, about: str, facts: Facts, threads: int = 1) -> None:
        self.name, self.about = name, about
        self.facts, self.threads = facts, threads
        self.runner = NodeRunner(model)
        self.model = model
        made = [(o, n) for n in self.runner.nodes if n.depends for o in n.outputs if o]
        self.at = {o: Place(o, n.op_type, (n.name,), quant=facts.quant.get(o)) for o, n in made}
        self.places = tuple(self.at.values())
        self._probe = lru_cache(maxsize=4)(self._exposing)

    def fetch(self, sample: Sample, names: Collection[str]) -> dict[str, Array]:
        """The values of these places, of one run of the whole model."""
        wanted = tuple(n for n in self.at if n in set(names))
        found = self._probe(wanted).run(self._inputs(sample))
        return {n: found[n] for n in wanted if n in found}

    def walk(self, sample: Sample, given: Given) -> Iterator[Step]:
        """The places in running order: what the whole model computes, and each node on what was given."""
        fed: dict[str, Array] = dict(self._inputs(sample))
        last = {n: i for i, node in enumerate(self.runner.nodes) for n in node.inputs}
        ready: dict[str, Array] = {}
        names = list(self.at)
        for i, node in enumerate(self.runner.nodes):
            own = self._own(i, node, fed)
            fed.update(own)
            for name in node.outputs:
                if name not in self.at:
                    continue
                if name not in ready:
                    start = names.index(name)
                    ready = self.fetch(sample, names[start : start + self.facts.fitting(names[start:], CHUNK)])
                total = ready.pop(name, None)
                if total is None:  # no array: a sequence, a map
                    continue
                yield Step(self.at[name], total, own.get(name))
                want = given(self.at[name], total)
                if want is not None or name not in own:
                    fed[name] = total if want is None or same(total, want) else want
            for name in (*node.inputs, *node.outputs):
                if last.get(name, i) == i:
                    fed.pop(name, None)

    def _own(self, i: int, node: NodeInfo, fed: dict[str, Array]) -> dict[str, Array]:
        try:
            return self.runner.run(i, fed)
        except ProbeError:
            return {}  # the walk goes on with what the whole model computes, and says that there is no `own`

    def _exposing(self, names: tuple[str, ...]) -> Probe:
        return Probe(self.model, optimised=False, threads=self.threads, expose=names)

    def _inputs(self, sample: Sample) -> dict[str, Array]:
        return {n: np.asarray(sample[n]) for n in self.runner.inputs if n in sample}


def optimized_stage(model: Path, folder: Path, facts: Facts, threads: int = 1) -> OnnxStage:
    """The graph that ONNX Runtime's optimiser leaves of the model, saved in `folder` and run as it is.

    (Asking the optimised session itself for its inner tensors would keep the optimiser from what is looked at.)
    """
    handle = tempfile.NamedTemporaryFile(suffix=".onnx", dir=folder, delete=False)  # noqa: SIM115 - a name of its own
    handle.close()
    path = Path(handle.name)
    make_session(model, str(model), optimised=True, threads=threads, save=path)
    return OnnxStage(path, "ort-optimized", "ONNX Runtime, after its optimiser", facts, threads)
