"""`hbc ops`."""

from __future__ import annotations

import dataclasses

import click

from hbc.catalogue import instruction_rows, limit_rows, markdown, onnx_operators, op_rows
from hbc.frontend.onnx_catalogue import operators
from hbc.options import march_named

from .console import Screen
from .params import SETTINGS, json_flag, march_option, screen, verbosity
from .render import table

OP_COLUMNS = ("op", "on the BPU", "what it is")
LIMIT_COLUMNS = ("limit", "what it says", "of")
MANY = 8  # ops that a row names; a rule over more is a rule over arithmetic at large
ONNX_COLUMNS = ("ONNX operator", "becomes", "ops", "note")
INSTRUCTION_COLUMNS = ("number", "instruction", "reference", "jit", "what it does")


@click.command(context_settings=SETTINGS)
@march_option
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the tables as Markdown, for the docs.")
@json_flag
@verbosity
def command(march: str, as_markdown: bool, as_json: bool) -> None:
    """List the ops of the IR and how each runs on a march, the instructions, and the ONNX operators that are taken."""
    if as_markdown and as_json:
        raise click.UsageError("--markdown and --json exclude each other")
    name, out = march_named(march), screen()
    if as_json:
        _json(out, name)
    elif as_markdown:
        _markdown(out, name)
    else:
        _tables(out, name)


def _op_cells() -> list[tuple[str, ...]]:
    return [(r.name, r.bpu, r.summary) for r in op_rows()]


def _limit_cells(march: str) -> list[tuple[str, ...]]:
    return [(r.name, r.text, _named(r.ops)) for r in limit_rows(march)]


def _named(names: tuple[str, ...]) -> str:
    return ", ".join(names) if len(names) <= MANY else f"{len(names)} ops"


def _instruction_cells() -> list[tuple[str, ...]]:
    marks = {True: "yes", False: "MISSING"}
    return [(str(r.number), r.name, marks[r.reference], marks[r.jit], r.summary) for r in instruction_rows()]


def _tables(out: Screen, march: str) -> None:
    out.result(table(OP_COLUMNS, _op_cells(), title="ops"))
    out.result("")
    out.result(table(LIMIT_COLUMNS, _limit_cells(march), title=f"limits of {march}"))
    out.result("")
    out.result(table(INSTRUCTION_COLUMNS, _instruction_cells(), title="instructions", right=("number",)))
    out.result("")
    out.result(table(ONNX_COLUMNS, _onnx_cells(), title="ONNX operators; ONNX Runtime runs all others"))


def _onnx_cells() -> list[tuple[str, ...]]:
    rows = [o for o in operators() if o.how not in {"CPU call", "refused"}]
    return [(f"{o.domain}.{o.name}" if o.domain else o.name, o.how, ", ".join(o.becomes), o.note) for o in rows]


def _markdown(out: Screen, march: str) -> None:
    out.raw(f"## Ops\n\n{markdown(OP_COLUMNS, _op_cells())}")
    out.raw(f"\n## Limits of {march}\n\n{markdown(LIMIT_COLUMNS, _limit_cells(march))}")
    out.raw(f"\n## Instructions\n\n{markdown(INSTRUCTION_COLUMNS, _instruction_cells())}")
    out.raw(f"\n## ONNX operators\n\n{markdown(ONNX_COLUMNS, _onnx_cells())}")


def _json(out: Screen, march: str) -> None:
    out.json(
        {
            "march": march,
            "ops": [dataclasses.asdict(r) for r in op_rows()],
            "limits": [dataclasses.asdict(r) for r in limit_rows(march)],
            "instructions": [dataclasses.asdict(r) for r in instruction_rows()],
            "onnx": onnx_operators(),
            "onnx_operators": [dataclasses.asdict(o) for o in operators()],
        }
    )
