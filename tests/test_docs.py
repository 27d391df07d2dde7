"""The pages of docs/: generated ones are up to date, links lead somewhere, excerpts are in the source, examples run.

A fence whose first line is a comment with a path quotes that file. Other `python` and `console` fences are run where
they are whole: where they define all names that they use, and the files that they read are there.
"""

from __future__ import annotations

import ast
import builtins
import doctest
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hbc.backend.bpu.march import MARCHES
from hbc.docs import PAGES, write_pages
from hbc.docs.ops import FAMILIES
from hbc.docs.quantised import form_of
from hbc.frontend.onnx_catalogue import HOWS, newest_opset, operators
from hbc.frontend.onnx_ops import RULES
from hbc.ir import fixed_point, ops
from hbc_runtime.hbm import layout
from hbc_runtime.jit.entry import MAGIC
from hbc_runtime.program import ALIGN
from tests.e2e.command import environment, hbc

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
LINKED = [
    *DOCS,
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *ROOT.glob("examples/*/*.md"),
]
FILES = (".onnx", ".hbm", ".hbir", ".npz", ".npy", ".pt", ".pt2")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"(?:#|//) ([\w./-]+/[\w.-]+)\n")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def params(blocks: list[tuple[Path, str]]) -> list[pytest.ParameterSet]:
    return [pytest.param(page, block, id=f"{name_of(page)}-{i}") for i, (page, block) in enumerate(blocks)]


def fences(language: str | None) -> Iterator[tuple[Path, str]]:
    for page in DOCS:
        for word, block in FENCE.findall(text_of(page)):
            if language in {None, word}:
                yield page, block


# ---- generated pages


@pytest.mark.parametrize("name", PAGES)
def test_generated_page_is_up_to_date(name: str) -> None:
    if name == "onnx-operators.md" and f"up to opset {newest_opset()} has" not in text_of(ROOT / "docs" / name):
        pytest.skip(f"the page lists the operators of another onnx than the installed one (opset {newest_opset()})")
    assert text_of(ROOT / "docs" / name) == PAGES[name](), "run: bash scripts/docs"


def test_pages_are_written_where_they_changed(tmp_path: Path) -> None:
    assert [p.name for p in write_pages(tmp_path)] == list(PAGES)
    (tmp_path / "ops.md").write_text("old", encoding="utf-8")
    assert [p.name for p in write_pages(tmp_path)] == ["ops.md"]
    assert write_pages(tmp_path) == []


def test_every_op_of_the_table_is_on_the_page() -> None:
    page = text_of(ROOT / "docs" / "ops.md")
    for name, cls in ops.TABLE.items():
        if issubclass(cls, ops.BpuOp):
            assert f"### {name}\n" in page
        else:
            assert cls.__module__.rpartition(".")[2] in FAMILIES, "a new module of ops needs a title in FAMILIES"
            assert f"### {name}\n" in page or f"| `{name}` |" in page


def test_every_op_with_integers_says_what_it_takes_and_gives() -> None:
    silent = [cls.NAME for cls in fixed_point.DERIVE if form_of(cls) is None]
    assert silent == [], "add it to FORMS in hbc/docs/quantised.py"


@pytest.mark.parametrize("march", MARCHES)
def test_an_op_s_limits_stand_beside_it(march: str) -> None:
    section = text_of(ROOT / "docs" / "ops.md").split("\n### conv2d\n")[1].split("\n### ")[0]
    kernel = MARCHES[march].max_kernel
    lines = [line for line in section.splitlines() if f"kernel is at most {kernel} high" in line]
    assert len(lines) == 1
    assert march in lines[0]


def test_every_onnx_operator_is_listed_once_and_says_what_becomes_of_it() -> None:
    rows = operators()
    assert len({(o.domain, o.name) for o in rows}) == len(rows)
    assert {(o.domain, o.name) for o in rows} >= RULES.keys() - {k for k in RULES if not k[0] and k not in known()}
    assert {o.how for o in rows} <= HOWS.keys()
    how = {o.name: o for o in rows if not o.domain}
    assert (how["Conv"].how, how["Sigmoid"].how, how["Softmax"].how) == ("integers", "table", "composite")
    assert (how["Identity"].how, how["LSTM"].how) == ("folded", "CPU call")
    assert "conv2d" in how["Conv"].becomes
    assert how["Sigmoid"].becomes == ("sigmoid",)


def known() -> set[tuple[str, str]]:
    """ONNX's own operators in the installed onnx."""
    return {(o.domain, o.name) for o in operators() if not o.domain}


# ---- links


def links(page: Path) -> list[str]:
    """Targets of the page's links, code left out."""
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", text_of(page)))
    return re.findall(r"\]\(([^)\s]+)\)", text)


def anchors(page: Path) -> set[str]:
    """What the page's headings are called in links (GitHub's rule)."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", text_of(page)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if link.startswith(("https://", "http://")):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_the_index_leads_to_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    assert [name_of(p) for p in DOCS if p != index and p not in linked] == []


# ---- excerpts

EXCERPTS = [(page, block) for page, block in fences(None) if QUOTED.match(block)]


def test_excerpts_are_found() -> None:
    assert len(EXCERPTS) >= 8


@pytest.mark.parametrize(("page", "block"), params(EXCERPTS))
def test_excerpt_is_in_the_source(page: Path, block: str) -> None:
    """Every line but `…`, in this order."""
    quoted = QUOTED.match(block)
    assert quoted is not None
    source = text_of(ROOT / quoted[1])
    at = 0
    for line in block.splitlines()[1:]:
        if line.strip() in {"", "…"}:
            continue
        found = source.find(line.strip(), at)
        assert found >= 0, f"{quoted[1]} does not go on with: {line}"
        at = found + len(line.strip())


# ---- examples


def is_whole(code: str) -> bool:
    """True for a program that binds every name that it reads, and whose files are there."""
    nodes = list(ast.walk(ast.parse(code)))
    read = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    bound = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    bound |= {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef | ast.ExceptHandler) and n.name}
    bound |= {
        (a.asname or a.name).partition(".")[0]
        for n in nodes
        if isinstance(n, ast.Import | ast.ImportFrom)
        for a in n.names
    }
    bound |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    texts = [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return read <= bound | set(dir(builtins)) and all((ROOT / t).exists() for t in texts if t.endswith(FILES))


def commands(block: str) -> list[tuple[list[str], list[str]]]:
    """Each `$` line's words, and the lines that the page shows below it."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [(shlex.split(first), rest) for first, *rest in (p.splitlines() for p in parts)]


def runs_alone(block: str) -> bool:
    """True where all commands are hbc's and read what is there or what one before them wrote."""
    there: set[str] = set()
    for words, _ in commands(block):
        written = {words[i + 1] for i, word in enumerate(words[:-1]) if word in {"-o", "--output"}}
        files = {w for w in words if w.endswith(FILES)} - written
        if words[0] != "hbc" or not all(f in there or (ROOT / f).exists() for f in files):
            return False
        there |= written
    return bool(commands(block))


PROGRAMS = [(p, b) for p, b in fences("python") if ">>>" not in b and not QUOTED.match(b) and is_whole(b)]
SESSIONS = [(p, b) for p, b in fences("console") if runs_alone(b)]
DOCTESTS = [p for p in DOCS if ">>>" in text_of(p) and p.name != "numerics.md"]  # that page has a test of its own


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder to write in, with the examples as in a checkout."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


def test_examples_are_found() -> None:
    assert len(PROGRAMS) >= 2
    assert len(SESSIONS) >= 1
    assert len(DOCTESTS) >= 1


@pytest.mark.parametrize(("page", "block"), params(PROGRAMS))
def test_program_runs(page: Path, block: str, checkout: Path) -> None:
    if "import torch" in block:
        pytest.importorskip("torch", reason="the page's program needs PyTorch")
    line = [sys.executable, "-c", block]
    done = subprocess.run(line, cwd=checkout, env=environment(), capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("page", "block"), params(SESSIONS))
def test_session_runs_and_shows_what_the_page_shows(page: Path, block: str, checkout: Path) -> None:
    for words, shown in commands(block):
        done = hbc(*words[1:], cwd=checkout)
        assert done.status == 0, f"{words}\n{done.err}"
        seen = [" ".join(line.split()) for line in done.out.splitlines()]
        missing = [line for line in shown if line.strip() != "…" and not any(" ".join(line.split()) in s for s in seen)]
        assert missing == [], f"{words}\n{done.out}"


@pytest.mark.parametrize("page", DOCTESTS, ids=name_of)
def test_doctests_are_right(page: Path) -> None:
    test = doctest.DocTestParser().get_doctest(text_of(page), {}, page.name, str(page), 0)
    report: list[str] = []
    assert doctest.DocTestRunner(verbose=False).run(test, out=report.append).failed == 0, "".join(report)


# ---- facts


def test_the_format_page_states_the_code_s_numbers() -> None:
    page = text_of(ROOT / "docs" / "hbm-format.md")
    plain, native, streams = layout.VERSIONS
    assert (
        f"`File.version` is {plain}, {native} where there is native code, or {streams} where there are command" in page
    )
    assert f"the identifier, `{layout.IDENTIFIER.decode()}`" in page
    assert f"| 0 … {len(MAGIC) - 1} | `{MAGIC.decode()}` |" in page
    assert f"places tensors at multiples of {ALIGN}" in page
    assert (layout.MAX_TENSORS, layout.MAX_INSTRUCTIONS, layout.MAX_RANK) == (1 << 20, 1 << 18, 8)
    assert "2²⁰ tensors and 2¹⁸ instructions" in page
    assert "rank 8 or less" in page
    assert (layout.MAX_METADATA, layout.MAX_BUFFER) == (64 << 20, 16 << 30)
    assert "at most 64 MiB" in page
    assert "16 GiB or less" in page
