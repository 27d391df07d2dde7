"""How far hbc gets with ONNX's own node tests: `python -m tests.onnx_node`; `--write` puts it into the docs."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import onnx
import onnxruntime

from .cases import NodeCase, node_cases
from .judge import DIFFERENT, FAILED, PASSED, REFUSED, Verdict, judge
from .wrap import LOOSER, judge_wrapped

PAGE = Path(__file__).parents[2] / "docs" / "onnx-node-tests.md"
OUTCOMES = (PASSED, DIFFERENT, REFUSED, FAILED)
ARITHS = ("bpu", "onnx")

WRITTEN = "Written by `python -m tests.onnx_node --write` with onnx {} and ONNX Runtime {}.\n"
ABOUT = """Each test is a model of one operator or a few, with its inputs and expected outputs.

hbc compiles it for nash-e, the NumPy engine runs it, and the outputs are compared as ONNX's own runner does: by the
test's tolerance, types and shapes equal. Floats run in a CPU segment.
"""
DIFFERS = """*ONNX Runtime differs too*: the outputs are off, and ONNX Runtime, on the whole model, is off as
well, or does not run it.
"""
QUANTISED = """The tests of one promised operator on finite float32 data again, with QuantizeLinear and DequantizeLinear
(int8, symmetric) on operands and results: how many run on the BPU, and how many quanta the results are off ONNX
Runtime's, unoptimised, on the same model.
"""


def judge_all(index: int) -> tuple[Verdict, tuple[Verdict | None, ...]]:
    """The verdict on test number `index` as it is, and on its quantised form in each arithmetic."""
    case = node_cases()[index]
    return judge(case), tuple(judge_wrapped(case, arith) for arith in ARITHS)


def page(verdicts: list[tuple[Verdict, tuple[Verdict | None, ...]]]) -> str:
    """The whole account in Markdown."""
    cases = node_cases()
    promised = [(c, v) for c, (v, _) in zip(cases, verdicts, strict=True) if c.is_promised]
    others = [(c, v) for c, (v, _) in zip(cases, verdicts, strict=True) if not c.is_promised]
    wrapped = [(c, w) for c, (_, w) in zip(cases, verdicts, strict=True) if any(v is not None for v in w)]
    return "\n".join(
        [
            "# ONNX's node tests\n",
            WRITTEN.format(onnx.__version__, onnxruntime.__version__),
            ABOUT,
            "## As they are\n",
            _counts((("every operator promised", promised), ("others", others))),
            DIFFERS,
            "Why tests of promised operators don't pass:\n",
            _reasons(v for _, v in promised),
            "Why the others don't:\n",
            _reasons(v for _, v in others),
            "## Quantised\n",
            QUANTISED,
            _wrapped(wrapped),
            *_loosened(),
        ]
    )


def _counts(groups: Iterable[tuple[str, list[tuple[NodeCase, Verdict]]]]) -> str:
    lines = ["| tests | all | " + " | ".join(OUTCOMES) + " |", "| --- |" + " ---: |" * (len(OUTCOMES) + 1)]
    for name, rows in groups:
        count = Counter(v.outcome for _, v in rows)
        lines.append(f"| {name} | {len(rows)} | " + " | ".join(str(count[o]) for o in OUTCOMES) + " |")
    return "\n".join(lines) + "\n"


def _reasons(verdicts: Iterable[Verdict]) -> str:
    kinds: dict[tuple[str, str], list[str]] = {}
    for v in verdicts:
        if v.outcome != PASSED:
            why = v.why if v.outcome == REFUSED else "results are off"
            kinds.setdefault((v.outcome, why), []).append(v.name.removeprefix("test_"))
    rows = sorted(kinds.items(), key=lambda kv: (OUTCOMES.index(kv[0][0]), -len(kv[1]), kv[0][1]))
    lines = ["| | why | tests |", "| --- | --- | --- |"]
    for (outcome, why), names in rows:
        shown = ", ".join(f"`{n}`" for n in names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        lines.append(f"| {outcome} | {why.replace('|', '/')} | {len(names)}: {shown} |")
    return "\n".join(lines) + "\n"


def _wrapped(rows: list[tuple[NodeCase, tuple[Verdict | None, ...]]]) -> str:
    by_op: dict[str, list[tuple[Verdict | None, ...]]] = {}
    for case, verdicts in rows:
        by_op.setdefault(case.model.graph.node[0].op_type, []).append(verdicts)
    heads = [f"{a}: {what}" for a in ARITHS for what in ("passed", "on the BPU", "most quanta")]
    lines = ["| operator | tests | " + " | ".join(heads) + " |", "| --- |" + " ---: |" * (len(heads) + 1)]
    for op, found in sorted(by_op.items()):
        cells = [str(len(found))]
        for i in range(len(ARITHS)):
            own = [v[i] for v in found if v[i] is not None]
            ran = [v for v in own if v is not None and v.how]
            quanta = max((float(v.why.split()[0]) for v in ran), default=0.0)
            cells += [
                str(sum(v.outcome == PASSED for v in ran)), str(sum(v.how == "bpu" for v in ran)), f"{quanta:g}"
            ]  # fmt: skip
        lines.append(f"| {op} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _loosened() -> list[str]:
    return [f"- {op}: up to {quanta} quanta in the BPU's arithmetic: {why}" for op, (quanta, why) in LOOSER.items()]


def main(arguments: list[str]) -> int:
    """Judge everything, print the account; 1 where a test failed."""
    start = time.perf_counter()
    with ProcessPoolExecutor(2) as pool:
        verdicts = list(pool.map(judge_all, range(len(node_cases())), chunksize=16))
    text = page(verdicts)
    print(text)
    if "--write" in arguments:
        PAGE.write_text(text, encoding="utf-8")
    failed = [v for one, wrapped in verdicts for v in (one, *wrapped) if v is not None and v.outcome == FAILED]
    for v in failed:
        print(f"failed: {v.name} {v.how}: {v.why}")
    print(f"{len(verdicts)} tests, {len(failed)} failures, {time.perf_counter() - start:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
