"""Boards: a march, its host and its DDR. The numbers that are fitted come from `boards.json`, with how and when."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files

from hbc.backend.bpu.march import MARCHES, MarchSpec
from hbc.options import pick

DEFAULTS = {"bernoulli2": "x3", "bayes": "x5", "bayes-e": "x5", "nash-e": "s100", "nash-m": "s100p", "nash-p": "s100p"}


@dataclass(frozen=True)
class Rates:
    """The free numbers of a board: what `scripts/fit_boards.py` fits, at most eight, by rows that tell them.

    `dense`, `depthwise`, `matmul`: padded MACs in a cycle. `vector`: elements in a cycle of engines that multiply no
    matrices. `ddr`: bytes in a microsecond. `command`: cycles that an instruction takes beside its work. `host_ms`:
    what a run takes beside the BPU. `output_ms_per_mb`: what the host takes for a megabyte of float32 outputs.
    """

    dense: float
    depthwise: float
    matmul: float
    vector: float
    ddr: float
    command: float
    host_ms: float
    output_ms_per_mb: float

    def checked(self, march: MarchSpec, ddr_peak: float) -> Rates:
        """These, never beyond what the march and its memory can do at best."""
        peak = float(march.macs_per_cycle)
        rates = {name: min(getattr(self, name), peak) for name in ("dense", "depthwise", "matmul")}
        return Rates(**{f.name: getattr(self, f.name) for f in fields(self)} | rates | {"ddr": min(self.ddr, ddr_peak)})


@dataclass(frozen=True)
class Board:
    """A board: facts (`title`, `march`, `ddr_peak`: bytes in a microsecond), assumptions, and fitted rates.

    `feature`: bytes of activations that the tensor engine reads and writes in a cycle. `cpu`: nanoseconds that the host
    takes for an element of an op that stays on it: so many cycles of its clock. Both are assumptions that all boards
    share (`scripts/fit_boards.py`), and are not fitted to any.
    """

    name: str
    title: str
    march: str
    ddr_peak: float
    feature: float
    cpu: float
    rates: Rates
    source: str = ""

    @property
    def spec(self) -> MarchSpec:
        """The march's numbers."""
        return MARCHES[self.march]


@cache
def boards() -> dict[str, Board]:
    """Every board by its name."""
    data = json.loads(files(__package__).joinpath("boards.json").read_text(encoding="utf-8"))
    found = {}
    for name, entry in data["boards"].items():
        plain = {k: entry[k] for k in ("title", "march", "ddr_peak", "feature", "cpu", "source")}
        rates = Rates(**entry["rates"]).checked(MARCHES[entry["march"]], entry["ddr_peak"])
        found[name] = Board(name=name, rates=rates, **plain)
    return found


def board_named(name: str | None, march: str) -> Board:
    """The board called `name`, or the march's default. OptionError for one that there is none of."""
    return boards()[pick("board", name or DEFAULTS[march], boards())]
