"""One node test through hbc: compiled, run, compared; and where it doesn't come out right, why."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import ModelProto

import hbc
from hbc.backend.cpu.sessions import open_session
from hbc.diagnostics import HbcError
from hbc_runtime import Session
from hbc_runtime.errors import HbmError

from .cases import NodeCase

PASSED, REFUSED, DIFFERENT, FAILED = "passed", "refused", "ONNX Runtime differs too", "failed"


@dataclass(frozen=True)
class Verdict:
    """What became of one test; `how` says where its nodes ran, `why` what hbc or the comparison said."""

    name: str
    outcome: str
    how: str = ""
    why: str = ""


def judge(case: NodeCase) -> Verdict:
    """Compile for nash-e, run every data set by the reference engine, compare as ONNX's own runner does.

    `refused`: hbc explains at compile time that it doesn't take the model. `ONNX Runtime differs too`: the outputs are
    off, and so are ONNX Runtime's own on the whole model, or it doesn't run the model. All else is `failed`.
    """
    try:
        compiled = hbc.compile(case.model, march="nash-e")
    except HbcError as error:
        return Verdict(case.name, REFUSED, why=reason_of(error))
    how = "+".join(sorted(compiled.report.placed)) or "nothing to run"
    try:
        with Session(compiled.program, engine="reference") as session:
            wrong = next((w for x, want in case.data if (w := _wrong(case, session.run(x), want))), None)
    except HbmError as error:
        wrong = str(error)
    if wrong is None:
        return Verdict(case.name, PASSED, how)
    outcome = FAILED if _onnxruntime_passes(case) else DIFFERENT
    return Verdict(case.name, outcome, how, wrong)


def reason_of(error: HbcError) -> str:
    """The kind of a refusal: its title and first reason, without the model's own names and numbers."""
    diagnostic = error.diagnostic
    text = f"{diagnostic.title}: {diagnostic.why.splitlines()[0]}" if diagnostic.why else diagnostic.title
    return re.sub(r"(?<!\w)'[^']*'(?!\w)", "'…'", text)


def _wrong(case: NodeCase, got: Mapping[str, Any], want: Mapping[str, Any]) -> str | None:
    """What is wrong with the outputs; None where nothing is."""
    for name, expected in want.items():
        if name and (text := _apart(np.asarray(got[name]), np.asarray(expected), case)):
            return f"output {name!r}: {text}"
    return None


def _apart(got: np.ndarray, want: np.ndarray, case: NodeCase) -> str | None:
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"{got.dtype} {got.shape}, not {want.dtype} {want.shape}"
    if want.dtype.kind in "fc":
        equal = np.isclose(got, want, rtol=case.rtol, atol=case.atol, equal_nan=True)
    else:
        equal = got == want
    return None if np.all(equal) else f"{np.count_nonzero(~np.asarray(equal))} of {want.size} elements"


def _onnxruntime_passes(case: NodeCase) -> bool:
    """True where ONNX Runtime, unoptimised, gives what the test expects of the whole model."""
    try:
        return all(_wrong(case, run_onnxruntime(case.model, x), want) is None for x, want in case.data)
    except Exception:  # noqa: BLE001 - ONNX Runtime's exceptions have no common base of their own
        return False


def run_onnxruntime(model: ModelProto, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """All outputs by name, without the optimiser."""
    session = open_session(ort, model.SerializeToString())
    return dict(zip((o.name for o in session.get_outputs()), session.run(None, dict(inputs)), strict=True))
