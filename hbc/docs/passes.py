"""`docs/passes.md`: the stages in order, then every pass."""

from __future__ import annotations

import dataclasses

from hbc.backend.bpu.pipelines import PIPELINES
from hbc.catalogue import markdown
from hbc.passes.base import Pass
from hbc.passes.manager import Stage
from hbc.passes.pipeline_text import print_value
from hbc.passes.registry import PASSES

from .text import NOTICE, doc, linked

ABOUT_PASSES = """\
A pass changes the [IR](ir.md) in place; the verifier runs after every one. `hbc opt -p NAME,NAME` runs single passes,
`hbc opt --stage NAME` a stage. A pass that doesn't change numbers is held to it: the golden tests run the module before
and after. [Architecture](architecture.md#the-pipeline) says why the stages stand in this order,
[writing a pass](writing-a-pass.md) how to add one.
"""


def passes_page() -> str:
    """The stages in order, then every pass: picture, options, whether numbers change, where it stands."""
    parts = [
        "# Passes\n",
        NOTICE.format("`hbc/backend/bpu/pipelines.py` and the passes' docstrings"),
        ABOUT_PASSES,
        "## The pipeline\n",
    ]
    for pipeline in dict.fromkeys(PIPELINES.values()):
        marches = [m for m, p in PIPELINES.items() if p == pipeline]
        parts.append(f"For {', '.join(marches)}:\n")
        rows = ((f"**{s.name}**", " · ".join(_pass_link(p) for p in s.passes), _promise(s)) for s in pipeline)
        parts.append(markdown(("stage", "passes", "promises"), rows))
    parts += ["## The passes\n", *(_pass_section(name, cls) for name, cls in PASSES.items())]
    return "\n".join(parts)


def _pass_link(p: Pass) -> str:
    options = [f for f in dataclasses.fields(p) if getattr(p, f.name) != f.default]
    given = " ".join(f"{f.name.replace('_', '-')}={print_value(getattr(p, f.name))}" for f in options)
    return f"[{p.name}](#{p.name})" + (f" `{{{given}}}`" if given else "")


def _promise(stage: Stage) -> str:
    promises = [f"no `{name}`" for name in sorted(cls.NAME or cls.__name__ for cls in stage.forbids)]
    if stage.ensures is not None:
        promises.append(f"[`{stage.ensures.__name__}`]({_source(stage.ensures.__module__)})")
    return ", ".join(promises) or "–"


def _pass_section(name: str, cls: type[Pass]) -> str:
    stages = [s.name for pipeline in PIPELINES.values() for s in pipeline if any(type(p) is cls for p in s.passes)]
    source, options = _source(cls.__module__), ", ".join(map(_option, dataclasses.fields(cls)))
    return (
        f"### {name}\n\n{linked(doc(cls))}\n"
        f"- stages: {', '.join(dict.fromkeys(stages)) or 'none; for `hbc opt`'}\n"
        f"- changes numbers: {'yes' if cls.changes_numerics else 'no'}\n"
        + (f"- options: {options}\n" if options else "")
        + f"- source: [{source.rpartition('/')[2]}]({source})\n"
    )


def _option(field: dataclasses.Field[object]) -> str:
    return f"`{field.name.replace('_', '-')} = {print_value(field.default)}`"


def _source(module: str) -> str:
    return f"../{module.replace('.', '/')}.py"
