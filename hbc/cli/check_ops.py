"""`hbc check-ops`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import click
from rich.text import Text

from hbc.options import CompileOptions
from hbc.placement import Placed, Placement, place_model
from hbc.words import plural, shorten

from .console import Screen
from .params import PATH, SETTINGS, json_flag, model_options, screen, verbosity
from .render import DEVICE_STYLES, table
from .stages import stage_lines

COLUMNS = ("node", "type", "runs on", "subgraph", "refused by", "here", "try")
RULES = ("rule", "says")
DIFFERENT = 3


@click.command("check-ops", context_settings=SETTINGS)
@click.argument("model", type=PATH)
@model_options
@click.option(
    "--fast-perf", is_flag=True, help="Made-up scales for what has none; a model without any gets them anyway."
)
@click.option("--refused", is_flag=True, help="List the nodes on the CPU alone.")
@click.option("--fail-on-cpu", is_flag=True, help="Exit status 3 where a node would run on the CPU.")
@json_flag
@verbosity
def command(
    model: Path, options: CompileOptions, fast_perf: bool, refused: bool, fail_on_cpu: bool, as_json: bool
) -> int:
    """Say where each node of MODEL (.onnx, .pt, .pt2; float or quantised) would run, which rule refuses it, and what to try.

    \b
    hbc check-ops model.onnx --march bayes-e             every node
    hbc check-ops model.onnx --march nash --refused      those on the CPU alone
    hbc check-ops model.pt --example 1x3x224x224 --json  TorchScript, as JSON
    """  # noqa: D301, E501 - \b is click's: the paragraph keeps its lines
    out = screen()
    out.story(f"hbc check-ops {model} for {options.march}", "bold")
    with stage_lines(out) as tell:
        found = place_model(model, replace(options, fast_perf=fast_perf), on_event=tell)
    if as_json:
        out.json(found.as_dict())
    else:
        _show(out, found, refused=refused)
    wrong = bool(found.on("cpu")) and (fail_on_cpu or not options.cpu_fallback)
    return DIFFERENT if wrong else 0


def _show(out: Screen, found: Placement, *, refused: bool) -> None:
    room = max(16, out.out.width // 5)
    nodes = found.on("cpu") if refused else found.layers
    if nodes:
        rows = [row for node in nodes for row in _rows(node, room)]
        out.result(table(COLUMNS, rows, title=f"{found.model} on {found.march}"))
        out.result("")
    says = {r.rule: r.text for node in nodes for r in node.refusals}
    if says:
        out.result(table(RULES, sorted(says.items())))
        out.result("")
    counts = ", ".join(f"{len(found.on(d))} {d}" for d in ("bpu", "cpu", "host", "folded") if found.on(d))
    subgraphs = {n.subgraph for n in found.layers if n.subgraph}
    out.result(f"{plural(len(found.layers), 'node')}: {counts}; {plural(len(subgraphs), 'subgraph')}")
    if found.pseudo:
        out.result("the model has no scales: made-up int8 scales stood in for them, so numbers were not looked at")
    for note in found.notes:
        out.warn(note)


def _rows(node: Placed, room: int) -> Iterable[tuple[object, ...]]:
    """A line for the node, and one more for each further rule that it breaks."""
    device = Text(node.device, style=DEVICE_STYLES.get(node.device, ""))
    head = (shorten(node.node, room), node.op_type, device, node.subgraph)
    if not node.refusals:
        yield (*head, node.reason, "", node.hint)
        return
    for i, r in enumerate(node.refusals):
        yield (*(head if i == 0 else ("", "", "", "")), r.rule, r.value.removeprefix("Here ").rstrip("."), r.hint)
