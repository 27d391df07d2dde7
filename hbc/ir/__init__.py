"""The typed SSA that models become: values, ops, graphs, and what one does with them (docs/ir.md).

    from hbc.ir import parse_module, verify, interpret, print_module

Names are resolved on first use, so that a part of this package does not load all of it. The op table is `hbc.ir.ops`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .builder import Builder, make_op
    from .compare import first_difference, modules_equal
    from .copying import clone
    from .core import Graph, Module, Op, Output, Placement, Use, Value
    from .files import load_module, save_module
    from .interpreter import evaluate, interpret
    from .location import FileLoc, FusedLoc, Loc, NodeLoc, fuse, node_names
    from .parser import parse_module
    from .printer import print_module, print_op, print_type
    from .rewriter import Rewriter
    from .semantics import ARITHS, MARCHES, Semantics
    from .types import DType, Layout, Quant, TensorType, f32
    from .verifier import verify

_HOMES = {
    "builder": ("Builder", "make_op"),
    "compare": ("first_difference", "modules_equal"),
    "copying": ("clone",),
    "core": ("Graph", "Module", "Op", "Output", "Placement", "Use", "Value"),
    "files": ("load_module", "save_module"),
    "interpreter": ("evaluate", "interpret"),
    "location": ("FileLoc", "FusedLoc", "Loc", "NodeLoc", "fuse", "node_names"),
    "parser": ("parse_module",),
    "printer": ("print_module", "print_op", "print_type"),
    "rewriter": ("Rewriter",),
    "semantics": ("ARITHS", "MARCHES", "Semantics"),
    "types": ("DType", "Layout", "Quant", "TensorType", "f32"),
    "verifier": ("verify",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ARITHS",
    "MARCHES",
    "Builder",
    "DType",
    "FileLoc",
    "FusedLoc",
    "Graph",
    "Layout",
    "Loc",
    "Module",
    "NodeLoc",
    "Op",
    "Output",
    "Placement",
    "Quant",
    "Rewriter",
    "Semantics",
    "TensorType",
    "Use",
    "Value",
    "clone",
    "evaluate",
    "f32",
    "first_difference",
    "fuse",
    "interpret",
    "load_module",
    "make_op",
    "modules_equal",
    "node_names",
    "parse_module",
    "print_module",
    "print_op",
    "print_type",
    "save_module",
    "verify",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        msg = f"module 'hbc.ir' has no attribute {name!r}"
        raise AttributeError(msg)
    import importlib

    value = getattr(importlib.import_module(f"hbc.ir.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
