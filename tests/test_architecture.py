"""Imports point down, and what is meant to load quickly does."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"hbc": ROOT / "hbc", "hbc_runtime": ROOT / "runtime"}

# A module may import its own part and parts on floors below (later lines); parts of one floor don't know each other.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("hbc", "hbc.__main__"),
    ("hbc.cli", "hbc.docs"),
    ("hbc.check", "hbc.ptq", "hbc.quantization"),
    ("hbc.opwise", "hbc.debug"),
    ("hbc.verify", "hbc.perf", "hbc.placement"),
    ("hbc.driver", "hbc.catalogue"),
    ("hbc.backend.bpu", "hbc.report"),
    ("hbc.backend.cpu", "hbc.passes", "hbc.frontend", "hbc.options", "hbc.samples", "hbc.analysis"),
    ("hbc.ir", "hbc.files", "hbc.example", "hbc.calibration", "hbc.native"),
    ("hbc.diagnostics", "hbc.words"),
    ("hbc_runtime",),
)
FLOOR_OF = {part: number for number, parts in enumerate(FLOORS) for part in parts}

# The only places where a package may be imported; `hbc.backend.cpu` stands for everything in it.
HOMES = {
    "onnx": ("hbc.frontend", "hbc.backend.cpu", "hbc.quantization"),
    "onnx_ir": ("hbc.frontend", "hbc.backend.cpu"),
    "onnxruntime": ("hbc.backend.cpu", "hbc_runtime.cpu"),
    "PIL": ("hbc.samples",),
    "pydantic": ("hbc.samples", "hbc.ptq"),
    "torch": ("hbc.frontend.torch_api", "hbc.quantization"),
    "click": ("hbc.cli",),
    "rich": ("hbc.cli", "hbc.quantization", "hbc.debug"),
    "yaml": ("hbc.samples", "hbc.ptq"),
    "llvmlite": ("hbc_runtime.jit", "hbc.native"),
    "flatbuffers": ("hbc_runtime.hbm",),
}
RUNTIME_NEEDS = {"numpy", "flatbuffers", "llvmlite", "onnxruntime"}
QUICK = 0.3  # seconds


@dataclass(frozen=True)
class Import:
    """One import of a source file: absolute name of the target, and where it stands."""

    module: str
    target: str
    line: int
    relative: bool
    at_load: bool  # runs when the module is imported: neither in a function nor under `if TYPE_CHECKING`
    for_types: bool  # under `if TYPE_CHECKING`

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


def modules() -> dict[str, Path]:
    """Every module of both packages by absolute name."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):
            parts = (package, *path.relative_to(folder).with_suffix("").parts)
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def statements(
    node: ast.AST, *, at_load: bool = True, for_types: bool = False
) -> Iterator[tuple[ast.stmt, bool, bool]]:
    """The import statements below `node`, each with `at_load` and `for_types`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, at_load, for_types
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from statements(child, at_load=False, for_types=for_types)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from statements(child, at_load=False, for_types=True)
        else:
            yield from statements(child, at_load=at_load, for_types=for_types)


def targets(module: str, path: Path, node: ast.stmt) -> list[str]:
    """Absolute names that an import statement loads: of `from package import name`, the submodule if there is one."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    assert isinstance(node, ast.ImportFrom)
    base = node.module or ""
    if node.level:
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        parent = package.split(".")[: len(package.split(".")) - (node.level - 1)]
        base = ".".join([*parent, *([node.module] if node.module else [])])
    full = [f"{base}.{alias.name}" for alias in node.names]
    return [name if name in MODULES else base for name in full]


def imports() -> list[Import]:
    """Every import of both packages."""
    return [
        Import(module, target, node.lineno, bool(getattr(node, "level", 0)), at_load, for_types)
        for module, path in MODULES.items()
        for node, at_load, for_types in statements(ast.parse(path.read_text(encoding="utf-8")))
        for target in targets(module, path, node)
    ]


IMPORTS = imports()


def inside(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def part_of(module: str) -> str | None:
    """The longest part in FLOORS that holds `module`; `hbc` itself holds nothing but its own file."""
    fitting = [p for p in FLOOR_OF if (module == p if p == "hbc" else inside(module, p))]
    return max(fitting, key=len, default=None)


def is_ours(name: str) -> bool:
    return name.split(".", maxsplit=1)[0] in FOLDERS


def test_the_sources_are_found() -> None:
    assert len(MODULES) > 50
    assert {"hbc.ir.core", "hbc_runtime.numerics", "hbc_runtime.hbm"} <= set(MODULES)
    seen = {(i.module, i.target, i.at_load, i.for_types) for i in IMPORTS}
    assert ("hbc.cli", "hbc.cli.app", True, False) in seen
    assert ("hbc", "onnx", False, True) in seen
    assert ("hbc", "hbc.driver", False, False) in seen


def test_parts_are_the_longest_that_fit() -> None:
    assert part_of("hbc.backend.bpu.rules.conv") == "hbc.backend.bpu"
    assert part_of("hbc") == "hbc"
    assert part_of("hbc.nonesuch") is None
    assert part_of("hbc_runtime.jit.kernels.conv") == "hbc_runtime"


def test_every_module_has_a_floor() -> None:
    bare = {"hbc.backend"}  # a folder; its __init__ holds no code
    homeless = [m for m in MODULES if part_of(m) is None and m not in bare]
    assert homeless == [], "add it to FLOORS, as low as it can stand"


def test_arrows_point_down() -> None:
    wrong = []
    for item in IMPORTS:
        source, target = part_of(item.module), part_of(item.target)
        if source is None or target is None or source == target:
            continue
        if FLOOR_OF[target] <= FLOOR_OF[source]:
            wrong.append(str(item))
    assert wrong == []


def test_the_runtime_knows_nothing_of_the_compiler() -> None:
    allowed = RUNTIME_NEEDS | {"hbc_runtime"} | set(sys.stdlib_module_names)
    of_runtime = [i for i in IMPORTS if inside(i.module, "hbc_runtime")]
    assert [str(i) for i in of_runtime if i.target.split(".")[0] not in allowed] == []


def test_the_runtime_imports_itself_relatively() -> None:
    """So that it works under any name, and `import runtime` in a checkout doesn't load it twice."""
    absolute = [i for i in IMPORTS if inside(i.module, "hbc_runtime") and is_ours(i.target) and not i.relative]
    assert [str(i) for i in absolute] == []


@pytest.mark.parametrize("package", sorted(HOMES))
def test_dependency_stays_in_its_home(package: str) -> None:
    homes = HOMES[package]
    astray = [
        str(i)
        for i in IMPORTS
        if inside(i.target, package) and not i.for_types and not any(inside(i.module, home) for home in homes)
    ]
    assert astray == []


def test_onnxruntime_is_imported_only_when_it_is_used() -> None:
    assert [str(i) for i in IMPORTS if inside(i.target, "onnxruntime") and i.at_load] == []


def test_no_import_cycles() -> None:
    """Among imports that run when a module loads. A package's `__init__` is a node of its own, as any module."""
    edges: dict[str, set[str]] = {m: set() for m in MODULES}
    for item in IMPORTS:
        if item.at_load and item.target in MODULES and item.target != item.module:
            edges[item.module].add(item.target)
    assert find_cycle(edges) == []


def find_cycle(edges: dict[str, set[str]]) -> list[str]:
    """A cycle as a path, or []: strip what imports nothing left, until nothing changes; walk what remains."""
    left = {m: set(targets) for m, targets in edges.items()}
    while leaves := [m for m, targets in left.items() if not targets & left.keys()]:
        for m in leaves:
            del left[m]
    if not left:
        return []
    path = [min(left)]
    while (following := min(left[path[-1]] & left.keys())) not in path:
        path.append(following)
    return [*path[path.index(following) :], following]


def test_find_cycle_finds_one() -> None:
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c", "b"]
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def load(package: str) -> tuple[float, set[str]]:
    """Seconds that importing `package` takes in a fresh process, and the top-level names of what it loads.

    Seconds of CPU, since those of the clock also count what other processes on the machine do meanwhile.
    """
    code = (
        "import json, sys, time; begin = time.process_time(); "
        f"import {package}; seconds = time.process_time() - begin; "
        "print(json.dumps([seconds, sorted({m.partition('.')[0] for m in sys.modules})]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    seconds, names = json.loads(done.stdout)
    return seconds, set(names)


@pytest.mark.parametrize("package", ["hbc", "hbc_runtime", "hbc.cli"])
def test_import_is_quick_and_light(package: str) -> None:
    tries = [load(package) for _ in range(3)]
    assert tries[0][1] & {"torch", "onnx", "onnxruntime", "sklearn", "scipy"} == set()
    assert min(seconds for seconds, _ in tries) < QUICK


def test_importing_the_runtime_does_not_load_the_compiler() -> None:
    _, names = load("hbc_runtime")
    assert "hbc_runtime" in names
    assert names & {"hbc", "click", "rich"} == set()
