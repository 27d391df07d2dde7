"""The generated pages of `docs/`: the tables that the compiler runs on, as Markdown. `scripts/docs` writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hbc.diagnostics import catalogue

from .marches import marches_page
from .onnx_operators import onnx_operators_page
from .ops import ops_page
from .ops_of_march import pages as march_pages
from .passes import passes_page
from .quantize_config import quantize_config_page
from .torch_operators import torch_operators_page

PAGES: dict[str, Callable[[], str]] = {
    "ops.md": ops_page,
    "onnx-operators.md": onnx_operators_page,
    "torch-operators.md": torch_operators_page,
    "passes.md": passes_page,
    "marches.md": marches_page,
    **march_pages(),
    "quantize-config.md": quantize_config_page,
    "diagnostics.md": catalogue,
}


def write_pages(folder: Path) -> list[Path]:
    """Write every generated page into `folder`; returns those that changed. OSError where one can't be written."""
    changed = []
    for name, page in PAGES.items():
        path, text = folder / name, page()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            changed.append(path)
    return changed
