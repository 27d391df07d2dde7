"""Tests whose reference is what a young ONNX Runtime does. Python 3.10 has none after 1.23."""

from __future__ import annotations

import importlib.metadata

import pytest

YOUNG = (1, 24)  # all of what these tests compare with is there from here on


def needs_young_onnxruntime(why: str) -> None:
    """Skip the calling test where ONNX Runtime is too old to be compared with: `why` says what it does differently."""
    try:
        version = importlib.metadata.version("onnxruntime")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the comparison needs ONNX Runtime")
    if tuple(map(int, version.split(".")[:2])) < YOUNG:
        pytest.skip(f"ONNX Runtime {version} {why}")
