"""Fit the free numbers of each board to published latencies, and keep them with their residuals.

    pip install hbc[fit]
    python scripts/fit_boards.py --rows published_latency_dev.csv --write

Rows name ONNX files beside the CSV. Each board has at most eight free numbers (`hbc.perf.boards.Rates`); the fit is in
logarithms, forgives outliers (soft L1), and pulls weakly towards the priors below, so that a number of which the rows
say little stays where physics would have it. Errors are reported on the rows fitted, and for rows that were left out:
one architecture at a time, and one family at a time.
"""

from __future__ import annotations

import argparse
import csv
import datetime as dt
import json
import pickle
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares
from scipy.stats import spearmanr

from hbc.driver import compile_model
from hbc.options import CompileOptions
from hbc.perf.boards import Board, Rates
from hbc.perf.estimate import output_mb, segment_works
from hbc.perf.simulate import CPU_TABLES
from hbc.perf.work import COMMAND_BYTES, Work, border_of
from hbc_runtime.commands import Engine
from hbc_runtime.program import CpuSegment

TARGET = Path(__file__).parents[1] / "hbc" / "perf" / "boards.json"
SOCS = {"RDK X5": "x5", "RDK S100": "s100", "RDK S100P": "s100p", "J6E": "j6e", "RDK X3": "x3"}
FORGIVES = 0.06  # relative error from which on a row counts linearly
THIRD_PARTY = 0.3  # weight of rows that others than the vendor measured, by means of their own
NAMES = [f.name for f in fields(Rates)]

# Assumptions that all boards share, so that they are no board's own: bytes of activations that the tensor engine reads
# and writes in a cycle, and the host's cycles for an element of an op that stays on it (the X3's one row with long
# tables, RepViT, says 9). Clocks of the hosts: product pages.
FEATURE = 200
HOST_CYCLES = 9
HOST_MHZ = {"x3": 1200, "x5": 1800, "s100": 1500, "j6e": 1500, "s100p": 2000}

X3 = Rates(230, 65, 65, 24, 8000, 4000, 0.1, 0.3)
X5 = Rates(1500, 65, 20, 72, 5800, 1700, 0.25, 0.5)
NASH = Rates(9000, 500, 600, 150, 30000, 600, 0.5, 0.15)
NASH_M = Rates(9400, 500, 700, 180, 30000, 600, 0.3, 0.15)  # the S100's engine by its own fit, at another clock
LPDDR5 = "LPDDR5-6400, 96 bits: 76.8 GB/s"
LPDDR4 = "the vendor's perf.json loads at 6.8 GB/s; peak of 32-bit LPDDR4-4266 assumed"


def _board(name: str, title: str, march: str, ddr_peak: float, rates: Rates, source: str) -> Board:
    return Board(name, title, march, ddr_peak, FEATURE, 1e3 * HOST_CYCLES / HOST_MHZ[name], rates, source)


BOARDS = {
    b.name: b
    for b in (
        _board("x3", "RDK X3", "bernoulli2", 12800, X3, "peak of 32-bit LPDDR4-3200 assumed"),
        _board("x5", "RDK X5", "bayes-e", 17064, X5, LPDDR4),
        _board("s100", "RDK S100", "nash-e", 76800, replace(NASH, host_ms=0.7, output_ms_per_mb=0.1), LPDDR5),
        _board("j6e", "J6E", "nash-e", 76800, replace(NASH, output_ms_per_mb=0.05), "as the S100, assumed"),
        _board("s100p", "RDK S100P", "nash-m", 76800, NASH_M, LPDDR5),
    )
}
# What a board's rows say nothing of keeps its prior: the X3's and the J6E's have no products of activations, the X3's
# have next to no outputs, and all of the S100's have the same.
PINNED: dict[str, tuple[str, ...]] = {
    "x3": ("matmul", "output_ms_per_mb"),
    "x5": (),
    "s100": ("output_ms_per_mb",),
    "j6e": ("matmul",),
    "s100p": (),
}
PULL = {"x3": 0.3, "x5": 0.1, "s100": 0.1, "j6e": 0.1, "s100p": 0.1}  # of priors, in logarithms


@dataclass(frozen=True)
class Row:
    """A published row with its model's work."""

    name: str
    board: str
    latency: float  # ms
    works: tuple[Work, ...]
    cpu_elements: int
    output_mb: float
    weight: float = 1.0  # in the fit

    @property
    def family(self) -> str:
        """Architectures that share a design: the name up to its first size."""
        found = re.match(r"yolov?\d+|[a-z]+(v\d)?", self.name)
        return found.group(0) if found else self.name


def main() -> None:
    """Read, fit, report, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True, help="the CSV of published rows")
    parser.add_argument("--write", action="store_true", help="write hbc/perf/boards.json")
    parser.add_argument("--markdown", action="store_true", help="print every row as a Markdown table")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "hbc-fit-works.pickle")
    args = parser.parse_args()
    rows = load_rows(args.rows, args.cache)
    fitted = {name: fit_board(board, [r for r in rows if r.board == name]) for name, board in BOARDS.items()}
    heads = ("board", "rows", "fitted", "architecture left out", "family left out", "vendor's rows alone", "rank")
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for name, entry in fitted.items():
        print(summary_line(name, entry))
    if args.markdown:
        for name, entry in fitted.items():
            print(f"\n| {name} | published ms | estimate ms | error % | left out % |\n|---|---|---|---|---|")
            for r in sorted(entry["rows"], key=lambda r: r["published_ms"]):
                error, left = (100 * (r[k] / r["published_ms"] - 1) for k in ("ms", "left_out_ms"))
                print(f"| {r['name']} | {r['published_ms']} | {r['ms']:.2f} | {error:+.1f} | {left:+.1f} |")
    if args.write:
        text = {"fitted": dt.datetime.now(dt.timezone.utc).date().isoformat(), "boards": fitted}
        TARGET.write_text(json.dumps(text, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"wrote {TARGET}")


def load_rows(path: Path, cache: Path) -> list[Row]:
    """The rows of the CSV with their works; compiled models are kept in `cache`."""
    works = pickle.loads(cache.read_bytes()) if cache.exists() else {}  # noqa: S301 - our own file
    rows = []
    for entry in csv.DictReader(path.open(encoding="utf-8")):
        board = SOCS[entry["soc"]]
        nv12 = entry["input_format"] == "nv12"
        key = (entry["file"], entry["march"], nv12)
        if key not in works:
            print("compile", *key)
            works[key] = model_works(path.parent / entry["file"], BOARDS[board], nv12=nv12)
            cache.write_bytes(pickle.dumps(works))
        weight = 1.0 if entry["trust"] == "vendor" else THIRD_PARTY
        rows.append(Row(entry["name"], board, float(entry["latency_ms"]), *works[key], weight=weight))
    return rows


def model_works(path: Path, board: Board, *, nv12: bool) -> tuple[tuple[Work, ...], int, float]:
    """(works, elements that CPU segments read, megabytes of outputs) of a model."""
    compiled = compile_model(path, CompileOptions(march=board.march, fast_perf=True))
    model = compiled.program.models[0]
    border = border_of(model, board.spec, nv12=nv12)
    works: list[Work] = []
    cpu = 0
    for segment in model.segments:
        if isinstance(segment, CpuSegment):
            cpu += sum(model.tensors[i].elements for i in segment.inputs)
        else:
            works += segment_works(model, segment.instructions, board, border)
    return tuple(works), cpu, output_mb(model)


def predictor(board: Board, row: Row) -> Callable[[np.ndarray], float]:
    """rates → milliseconds: `hbc.perf.simulate` with all layers at once."""
    on = [w for w in row.works if w.engine is not Engine.HOST]
    tables = sum(w.elements for w in row.works if w.engine is Engine.HOST and w.kind in CPU_TABLES)
    macs = {k: np.array([w.padded_macs * (w.kind == k) for w in on], float) for k in ("dense", "depthwise", "matmul")}
    features = np.array([w.feature_bytes for w in on]) / board.feature
    elements = np.array([w.elements for w in on], float)
    traffic = np.array([w.weight_bytes + COMMAND_BYTES + w.store_bytes for w in on], float)
    waited = sum(w.load_bytes for w in on)
    clock, cpu = board.spec.clock_mhz, (tables + row.cpu_elements) * board.cpu * 1e-6

    def predict(x: np.ndarray) -> float:
        r = dict(zip(NAMES, x, strict=True))
        multiply = macs["dense"] / r["dense"] + macs["depthwise"] / r["depthwise"] + macs["matmul"] / r["matmul"]
        compute = np.maximum(multiply, features) + elements / r["vector"]
        us = np.maximum(compute / clock, traffic / r["ddr"]).sum() + len(on) * r["command"] / clock + waited / r["ddr"]
        return float(us / 1e3 + r["host_ms"] + r["output_ms_per_mb"] * row.output_mb + cpu)

    return predict


def fit(board: Board, rows: Sequence[Row]) -> np.ndarray:
    """The rates that fit `rows` best, near the board's priors and within what march and memory can do."""
    prior = np.log([getattr(board.rates, n) for n in NAMES])
    peak = np.log(board.spec.macs_per_cycle)
    top = np.array([peak, peak, peak, np.inf, np.log(board.ddr_peak), np.inf, np.inf, np.inf])
    free = np.array([n not in PINNED[board.name] for n in NAMES])
    predictors = [predictor(board, r) for r in rows]
    target = np.log([r.latency for r in rows])
    weight = np.array([r.weight for r in rows])

    def whole(x: np.ndarray) -> np.ndarray:
        all_of_them = prior.copy()
        all_of_them[free] = x
        return all_of_them

    def residuals(x: np.ndarray) -> np.ndarray:
        e = np.log([p(np.exp(whole(x))) for p in predictors]) - target
        soft = np.sign(e) * np.sqrt(2 * (np.sqrt(1 + (e / FORGIVES) ** 2) - 1)) * FORGIVES
        return np.concatenate([weight * soft, PULL[board.name] * (x - prior[free])])

    return np.exp(whole(least_squares(residuals, prior[free], bounds=(-np.inf, top[free]), max_nfev=100).x))


def fit_board(board: Board, rows: Sequence[Row]) -> dict[str, object]:
    """A board's entry of boards.json."""
    x = fit(board, rows)
    made = np.array([predictor(board, r)(x) for r in rows])
    by_name, by_family = (left_out(board, rows, key) for key in (lambda r: r.name, lambda r: r.family))
    published = np.array([r.latency for r in rows])
    vendor = np.array([r.weight == 1 for r in rows])
    return {
        "title": board.title, "march": board.march, "ddr_peak": board.ddr_peak, "feature": board.feature,
        "cpu": board.cpu, "source": board.source,
        "free": [n for n in NAMES if n not in PINNED[board.name]],
        "rates": dict(zip(NAMES, (float(f"{v:.5g}") for v in x), strict=True)),
        "error": {"fitted": errors(made, published), "architecture": errors(by_name, published),
                  "family": errors(by_family, published)},
        "vendor": errors(made[vendor], published[vendor]),
        "vendor_left_out": errors(by_name[vendor], published[vendor]),
        "rank": round(float(spearmanr(made, published)[0]), 3),
        "rows": [
            {"name": r.name, "published_ms": r.latency, "vendor": r.weight == 1, "ms": round(m, 4),
             "left_out_ms": round(o, 4)}
            for r, m, o in zip(rows, made.tolist(), by_name.tolist(), strict=True)
        ],
    }  # fmt: skip


def left_out(board: Board, rows: Sequence[Row], key: Callable[[Row], str]) -> np.ndarray:
    """Estimates of rows by fits that have seen none of their group."""
    made = np.zeros(len(rows))
    for group in {key(r) for r in rows}:
        x = fit(board, [r for r in rows if key(r) != group])
        for i, r in enumerate(rows):
            if key(r) == group:
                made[i] = predictor(board, r)(x)
    return made


def errors(made: np.ndarray, published: np.ndarray) -> list[float]:
    """Median and 90th percentile of the absolute percentage error."""
    e = 100 * np.abs(made / published - 1)
    return [round(float(np.median(e)), 1), round(float(np.percentile(e, 90)), 1)]


def summary_line(name: str, entry: dict[str, object]) -> str:
    """One board as a row of Markdown."""
    error, rows = entry["error"], entry["rows"]
    assert isinstance(error, dict)
    assert isinstance(rows, list)
    cells = (f"{error[k][0]} / {error[k][1]} %" for k in ("fitted", "architecture", "family"))
    pairs = (entry["vendor"], entry["vendor_left_out"])
    vendor = ", left out ".join(f"{p[0]} / {p[1]} %" for p in pairs if isinstance(p, list))
    return f"| {name} | {len(rows)} | {' | '.join(cells)} | {vendor} | {entry['rank']} |"


if __name__ == "__main__":
    main()
