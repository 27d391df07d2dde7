"""Inputs to run a model on: from `.npy`, `.npz` and image files, or at random within what the model quantises."""

from __future__ import annotations

from .arrays import load_arrays, load_samples
from .base import Array, Input, Sample, SampleError
from .draw import draw, random_samples, ranges_of
from .inputs import read_given, read_input, read_samples
from .preprocess import parse_preprocess

__all__ = [
    "Array",
    "Input",
    "Sample",
    "SampleError",
    "draw",
    "load_arrays",
    "load_samples",
    "parse_preprocess",
    "random_samples",
    "ranges_of",
    "read_given",
    "read_input",
    "read_samples",
]
