"""Every rule of `hbm/checks.py` and `hbm/operands.py`: a program that breaks just that one is refused, with its place.

Each case is refused three ways: by the writer, by the reader (from a file written without checks), and by Session.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hbc_runtime import HbmFormatError, Program, Session, hbm, isa
from hbc_runtime.hbm.writer import encode_program
from hbc_runtime.isa import Scheme
from hbc_runtime.program import BpuSegment, CpuSegment, Model, Storage
from hbc_runtime.types import DType, Layout, Quant
from tests.sketch import Sketch, program_of

FORM_B = {"scheme": Scheme.FORM_B, "clamp_min": -128, "clamp_max": 127}


def refuse(program: Program, why: str) -> None:
    """All three doors are shut, for the same reason."""
    with pytest.raises(ValueError, match=why):
        hbm.write(program)
    with pytest.raises(HbmFormatError, match=why):
        hbm.read(encode_program(program))
    with pytest.raises(HbmFormatError, match=why):
        Session(program, engine="reference")


def with_model(change: Callable[[Model], Model], model: Model) -> Program:
    assert hbm.read(hbm.write(program_of(model))), "the case must be sound before it is broken"
    return program_of(change(model))


def tensor(number: int, /, **more: Any) -> Callable[[Model], Model]:
    def change(m: Model) -> Model:
        tensors = list(m.tensors)
        tensors[number] = replace(tensors[number], **more)
        return replace(m, tensors=tuple(tensors))

    return change


def border(kind: str, **more: Any) -> Callable[[Model], Model]:
    return lambda m: replace(m, **{kind: (replace(getattr(m, kind)[0], **more), *getattr(m, kind)[1:])})


def instruction(**more: Any) -> Callable[[Model], Model]:
    def change(m: Model) -> Model:
        segment = m.segments[0]
        assert isinstance(segment, BpuSegment)
        op = replace(segment.instructions[0], **more)
        return replace(m, segments=(replace(segment, instructions=(op, *segment.instructions[1:])), *m.segments[1:]))

    return change


def cpu(**more: Any) -> Callable[[Model], Model]:
    def change(m: Model) -> Model:
        assert isinstance(m.segments[0], CpuSegment)
        return replace(m, segments=(replace(m.segments[0], **more),))

    return change


# ---- the program


def chain() -> Model:
    """x (input) → t0 (arena) → y (output); tensors x 0, c 1 (constant), t 2, y 3."""
    m = Sketch()
    x = m.input((1, 4, 4, 2), DType.I16, name="x", quant=Quant.per_tensor(0.5, 1), layout=Layout.NHWC)
    m.constant([1, 2, 3], DType.I32)
    t = m.emit(isa.Clamp, [x], (1, 4, 4, 2), DType.I16, name="t", clamp_min=0, clamp_max=9, loc=("Relu_0",))
    m.emit(isa.Clamp, [t], (1, 4, 4, 2), DType.I16, name="y", clamp_min=0, clamp_max=5)
    return m.finish()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"march": "nash-x"}, "unknown march 'nash-x'; known are bernoulli2"),
        ({"arith": "tflite"}, "unknown arithmetic 'tflite'; known are bpu, onnx"),
        ({"models": ()}, "the program has no model"),
        ({"models": (chain(), chain())}, "two models are named 'main'"),
    ],
)
def test_program(change: dict[str, Any], why: str) -> None:
    refuse(replace(program_of(chain()), **change), why)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: replace(m, arena_size=(16 << 30) + 1), "model 'main': the arena has 17179869185 bytes"),
        (lambda m: replace(m, arena_size=63), r"tensor 2 \('t'\): it ends at byte 64 of the arena, which has 63"),
        (lambda m: replace(m, inputs=m.inputs * 2), "two inputs are named 'x'"),
        (lambda m: replace(m, outputs=m.outputs * 2), "two outputs are named 'y'"),
        (tensor(2, shape=(1,) * 9), "rank 9, at most 8"),
        (tensor(2, shape=(1, -4, 4, 2)), "negative size"),
        (tensor(2, shape=(1 << 40, 1 << 40)), "at most 17179869184 are allowed"),
        (tensor(2, shape=(0, 1 << 60)), "at most 17179869184 are allowed"),
        (tensor(2, offset=64), r"ends at byte 128 of the arena, which has 64"),
        (tensor(2, offset=1), "offset 1 is not aligned to 2 bytes"),
        (tensor(2, index=1), "index 1 in the arena"),
        (tensor(1, offset=2), "offset 2 is not aligned to 4 bytes"),
        (tensor(1, offset=1 << 50), "of the constant, which has 12"),
        (tensor(1, shape=(4,)), "ends at byte 16 of the constant, which has 12"),
        (tensor(0, offset=2), r"tensor 0 \('x'\): offset 2 in an input array"),
        (tensor(3, offset=2), "offset 2 in an output array"),
        (tensor(3, index=1), "output 'y': its tensor 3 lies in OUTPUT 1"),
        (tensor(1, storage=Storage.INPUT, offset=0, index=7), "tensor 1 .*: input 7 of 1"),
        (tensor(1, storage=Storage.INPUT, offset=0), "12 bytes in the place of 'x', which has 64"),
        (tensor(1, storage=Storage.INPUT, offset=0, shape=(16,)), "i32 in the place of 'x', which is i16"),
        (tensor(1, storage=Storage.OUTPUT, offset=0), "12 bytes in the place of 'y', which has 64"),
    ],
)
def test_model_and_tensors(change: Callable[[Model], Model], why: str) -> None:
    refuse(with_model(change, chain()), why)


@pytest.mark.parametrize(
    ("quant", "why"),
    [
        (Quant((0.0,)), "must be positive, finite float32 values, not 0.0"),
        (Quant((-0.5,)), "must be positive"),
        (Quant((float("inf"),)), "must be positive, finite"),
        (Quant((0.5,), (40000,)), "zero points 40000 leave i16"),
        (Quant((0.5, 0.5), (0, 0), axis=4), "axis 4 of rank 4"),
        (Quant((0.5, 0.5), (0, 0), axis=1), "2 scales for axis 1 of size 4"),
    ],
)
def test_quantisation(quant: Quant, why: str) -> None:
    refuse(with_model(tensor(2, quant=quant), chain()), f"tensor 2 .*{why}")
    refuse(with_model(border("inputs", quant=quant), chain()), f"input 'x': .*{why}")


def test_scales_that_are_no_float32_values_are_refused_by_the_writer() -> None:
    with pytest.raises(ValueError, match=r"float32 values, not 0\.1"):
        hbm.write(with_model(tensor(2, quant=Quant((0.1,))), chain()))


def test_floats_are_not_quantised() -> None:
    m = Sketch()
    x = m.input((2,), DType.F32)
    m.emit(isa.Transpose, [x], (2,), DType.F32, perm=(0,))
    refuse(with_model(tensor(x, quant=Quant((0.5,))), m.finish()), "scales on a tensor of f32")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (border("inputs", tensor=4), "input 'x': tensor 4 of 4"),
        (border("inputs", tensor=3), "its tensor 3 lies in OUTPUT 0"),
        (border("inputs", shape=(4, 4, 1, 2)), r"shape \(4, 4, 1, 2\), its tensor 0 has \(1, 4, 4, 2\)"),
        (border("inputs", dtype=DType.U16), "dtype u16, its tensor 0 has i16"),
        (border("outputs", tensor=2), "output 'y': its tensor 2 lies in ARENA 0"),
    ],
)
def test_border(change: Callable[[Model], Model], why: str) -> None:
    refuse(with_model(change, chain()), why)


def test_layouts_belong_to_rank_4() -> None:
    m = Sketch()
    m.emit(isa.FlipSign, [m.input((2, 2), DType.U8)], (2, 2), DType.I8)
    refuse(with_model(border("inputs", layout=Layout.NCHW), m.finish()), "layout NCHW for rank 2")


# ---- instructions


def requantized() -> Model:
    """Requantize: x 0, multiplier 1, pre_shift 2, post_shift 3, y 4."""
    m = Sketch()
    x = m.input((2, 3), DType.I8, name="x")
    parts = [m.constant([20000], DType.I16), m.constant([0], DType.I8), m.constant([15], DType.I8)]
    m.emit(isa.Requantize, [x, *parts], (2, 3), DType.I8, name="y", loc=("Conv_7",), **FORM_B)
    return m.finish()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"inputs": (0, 1, 2, 9)}, r"instruction 0 \(REQUANTIZE of 'Conv_7'\), operand 'post_shift': tensor 9 of 5"),
        ({"inputs": (0, 1, 2, -2)}, "operand 'post_shift': tensor -2 of 5"),
        ({"inputs": (-1, 1, 2, 3)}, "operand 'x': it is missing"),
        ({"inputs": (0, 1, 2)}, "3 operands, Requantize takes 4"),
        ({"inputs": (0, 1, 2, 3, 3)}, "5 operands, Requantize takes 4"),
        ({"inputs": (0, 1, 2, 4)}, "operand 'post_shift': 'y' lies in OUTPUT; a parameter must be constant"),
        ({"inputs": (0, 0, 2, 3)}, "operand 'multiplier': 'x' lies in INPUT; a parameter must be constant"),
        ({"outputs": ()}, "0 results, there must be 1"),
        ({"outputs": (4, 4)}, "2 results, there must be 1"),
        ({"outputs": (5,)}, "tensor 5 of 5"),
        ({"outputs": (0,)}, "it writes 'x', which lies in INPUT"),
        ({"inputs": (0, 1, -1, 3)}, "pre_shift must be i8"),
        ({"clamp_max": 128}, r"clamp \[-128, 128\]"),
        ({"x_zero_point": 1 << 32}, "attribute 'x_zero_point' is 4294967296, outside -2147483648..4294967295"),
        ({"zero_point": -(1 << 40)}, "attribute 'zero_point' is"),
    ],
)
def test_instruction(change: dict[str, Any], why: str) -> None:
    refuse(with_model(instruction(**change), requantized()), why)


def test_a_constant_is_not_written() -> None:
    m = Sketch()
    x = m.input((2, 3), DType.I8)
    c = m.constant(np.zeros((2, 3)), DType.I8)
    m.emit(isa.Clamp, [x], (2, 3), DType.I8, clamp_min=0, clamp_max=1)
    model = m.finish()
    refuse(with_model(instruction(outputs=(c,)), model), f"it writes 't{c}', which lies in CONSTANT")


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), 1e-60, 1e60])
def test_float_attributes_are_float32_numbers(scale: float) -> None:
    m = Sketch()
    x = m.input((2,), DType.I8)
    scales = {"lhs_scale": 0.5, "rhs_scale": 0.5, "out_scale": 0.5}
    m.emit(isa.Add, [x, x], (2,), DType.I8, scheme=Scheme.FLOAT, clamp_min=-128, clamp_max=127, **scales)
    refuse(with_model(instruction(lhs_scale=scale), m.finish()), "attribute 'lhs_scale' is .* no finite float32")


def pooled(**more: Any) -> Model:
    m = Sketch()
    x = m.input((1, 1, 4, 2), DType.I8, name="x")
    m.emit(isa.MaxPool, [x], (1, 1, 3, 2), DType.I8, name="y", **{"kernel": (1, 2), **more})
    return m.finish()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"kernel": (1 << 16, 2)}, r"kernel \(65536, 2\)"),
        ({"strides": ((1 << 16) + 1, 1)}, r"strides \(65537, 1\)"),
        ({"dilations": (1 << 32, 1)}, "attribute 'dilations'"),
        ({"dilations": ((1 << 32) - 1, 1)}, r"dilations \(4294967295, 1\)"),
        ({"pads": (1 << 20, 0, 0, 0)}, r"pads \(1048576, 0, 0, 0\)"),
        ({"pads": (1, 0, 0, 0)}, "a window lies outside the input"),
    ],
)
def test_windows_are_bounded(change: dict[str, Any], why: str) -> None:
    refuse(with_model(instruction(**change), pooled()), why)


def test_windows_that_step_over_the_input_are_refused() -> None:
    """The first and the last window hold its one position, the middle one lies around it."""
    m = Sketch()
    window = {"kernel": (2, 1), "pads": (2, 0, 2, 0), "dilations": (2, 1)}
    m.emit(isa.MaxPool, [m.input((1, 1, 1, 1), DType.I8)], (1, 3, 1, 1), DType.I8, **window)
    refuse(m.program(), "a window lies outside the input")


def test_the_work_of_a_run_is_bounded() -> None:
    """Some hundred bytes that would multiply matrices for hours."""
    m, size = Sketch(), 1 << 15
    sides = [m.emit(isa.Expand, [m.input((1, 1), DType.I8)], (size, size), DType.I8) for _ in range(2)]
    m.emit(isa.Matmul, [*sides, -1, -1, -1, -1], (size, size), DType.I32, scheme=Scheme.NONE, clamp_min=0, clamp_max=9)
    refuse(m.program(), r"model 'main': a run would take 3.52e\+13 steps, at most 4.40e\+12 are allowed")


def test_the_memory_of_a_run_is_bounded() -> None:
    """Each result alone would be let pass."""
    m = Sketch()
    x = m.input((1,), DType.I8)
    for _ in range(2):
        m.emit(isa.Expand, [x], (9 << 30,), DType.I8)
    refuse(m.program(), "inputs, outputs and arena have 19327352833 bytes together, over 17179869184")


# ---- values inside constants


def requantize_with(scheme: Scheme, mult: list[float], pre: list[int], post: list[int]) -> Sketch:
    m = Sketch()
    dtype = {Scheme.FLOAT: DType.F32, Scheme.WIDE: DType.I32}.get(scheme, DType.I16)
    shifts = [-1, -1] if scheme is Scheme.FLOAT else [m.constant(pre, DType.I8), m.constant(post, DType.I8)]
    inputs = [m.input((2,), DType.I8), m.constant(mult, dtype), *shifts]
    m.emit(isa.Requantize, inputs, (2,), DType.I8, scheme=scheme, clamp_min=-128, clamp_max=127)
    return m


@pytest.mark.parametrize(
    ("scheme", "mult", "pre", "post", "why"),
    [
        (Scheme.FORM_B, 20000, 32, 15, "pre_shift has entries from 32 to 32, allowed are 0 to 31"),
        (Scheme.FORM_B, 20000, 0, 32, "post_shift has entries from 32 to 32, allowed are 0 to 31"),
        (Scheme.FORM_A, 20000, -1, 15, "pre_shift has entries from -1 to -1"),
        (Scheme.WIDE, 1 << 30, 0, 63, "post_shift has entries from 63 to 63, allowed are 0 to 62"),
        (Scheme.FLOAT, float("nan"), 0, 0, "multiplier has entries that are not finite"),
        (Scheme.FLOAT, float("inf"), 0, 0, "multiplier has entries that are not finite"),
    ],
)
def test_requantisation_parameters(scheme: Scheme, mult: float, pre: int, post: int, why: str) -> None:
    refuse(requantize_with(scheme, [mult], [pre], [post]).program(), why)


@pytest.mark.parametrize(("shift", "ok"), [(-31, True), (62, True), (-32, False), (63, False)])
def test_addend_shifts(shift: int, ok: bool) -> None:
    m = Sketch()
    x, w = m.input((1, 2, 2, 1), DType.I8), m.constant(np.ones((1, 1, 1, 1)), DType.I8)
    params = [m.constant([20000], DType.I16), m.constant([0], DType.I8), m.constant([20], DType.I8)]
    addend = [m.input((1, 2, 2, 1), DType.I8), m.constant([20000], DType.I16), m.constant([shift], DType.I8)]
    m.emit(isa.Conv2d, [x, w, -1, *params, *addend], (1, 2, 2, 1), DType.I8, **FORM_B)
    if ok:
        assert hbm.read(hbm.write(m.program())) == m.program()
    else:
        refuse(m.program(), "addend_shift has entries from .* allowed are -31 to 62")


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_scales_of_quantize_and_dequantize(scale: float) -> None:
    for kind, of, to in ((isa.Quantize, DType.F32, DType.I8), (isa.Dequantize, DType.I8, DType.F32)):
        m = Sketch()
        params = [m.constant([scale], DType.F32), m.constant([0], DType.I32)]
        more = {"rounding": isa.Rounding.HALF_EVEN_F32, "clamp_min": -128, "clamp_max": 127} if to is DType.I8 else {}
        m.emit(kind, [m.input((2,), of), *params], (2,), to, **more)
        refuse(m.program(), "scale has entries that are not positive and finite")


@pytest.mark.parametrize(
    ("rows", "columns", "why"),
    [
        ([0, 3], [0], "rows has entries from 0 to 3, allowed are 0 to 2"),
        ([0, 2], [-1], "columns has entries from -1 to -1"),
    ],
)
def test_resize_nearest_tables(rows: list[int], columns: list[int], why: str) -> None:
    m = Sketch()
    x = m.input((1, 3, 2, 1), DType.I8)
    m.emit(isa.ResizeNearest, [x, m.constant(rows, DType.I32), m.constant(columns, DType.I32)], (1, 2, 1, 1), DType.I8)
    refuse(m.program(), why)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ([3, 2, 0], "rows has entries from 2 to 3, allowed are 0 to 2"),
        ([0, -1, 0], "rows has entries from -1 to 0"),
        ([0, 1, 257], "weights of rows has entries from 257 to 257, allowed are 0 to 256"),
    ],
)
def test_resize_bilinear_tables(row: list[int], why: str) -> None:
    m = Sketch()
    tables = [m.constant([row], DType.I32), m.constant([[0, 1, 128]], DType.I32)]
    m.emit(isa.ResizeBilinear, [m.input((1, 3, 2, 1), DType.I8), *tables], (1, 1, 1, 1), DType.I8)
    refuse(m.program(), why)


@pytest.mark.parametrize("index", [-1, 3])
def test_gather_indices(index: int) -> None:
    m = Sketch()
    m.emit(isa.Gather, [m.input((2, 3), DType.I8), m.constant([0, index], DType.I32)], (2, 2), DType.I8, axis=1)
    refuse(m.program(), "indices has entries .* allowed are 0 to 2")


def test_gathering_from_an_axis_of_size_0_is_refused() -> None:
    m = Sketch()
    m.emit(isa.Gather, [m.input((0,), DType.I8), m.constant([0], DType.I32)], (1,), DType.I8, axis=0)
    refuse(m.program(), "indices has entries from 0 to 0, allowed are 0 to -1")


@pytest.mark.parametrize(
    ("segments", "why"),
    [
        ([[-32767, 10, 0]], "the first segment begins at -32767"),
        ([[-32768, 10, 0], [-32768, 10, 1]], "segments do not ascend"),
        ([[-32768, 10, 0], [32768, 10, 1]], "segments has entries from -32768 to 32768"),
        ([[-32768, 17, 0]], "shifts of segments has entries from 17 to 17, allowed are 0 to 16"),
        ([[-32768, -1, 0]], "shifts of segments"),
        ([[-32768, 10, 2]], "table rows of segments has entries from 2 to 2, allowed are 0 to 1"),
    ],
)
def test_segment_lut_tables(segments: list[list[int]], why: str) -> None:
    m = Sketch()
    tables = [m.constant(segments, DType.I32), m.constant(np.zeros((2, 65)), DType.I16)]
    m.emit(isa.SegmentLut, [m.input((4,), DType.I16), *tables], (4,), DType.I16, clamp_min=-9, clamp_max=9)
    refuse(m.program(), why)


# ---- CPU segments and the plan


def on_cpu() -> Model:
    m = Sketch()
    m.constant([1.0, 2.0], DType.F32)
    m.cpu([m.input((2,), DType.F32)], [((2,), DType.F32)], b"onnx")
    return m.finish()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"onnx": b""}, r"segment 0 \('cpu'\): the embedded ONNX model is empty"),
        ({"outputs": ()}, "it has no output"),
        ({"inputs": (3,)}, "tensor 3 of 3"),
        ({"inputs": (-1,)}, "tensor -1 of 3"),
        ({"outputs": (0,)}, "it writes 't0', which lies in CONSTANT"),
        ({"outputs": (1,)}, "it writes 't1', which lies in INPUT"),
        ({"outputs": (2, 2)}, "writes 't2' .*, which already has a value"),
    ],
)
def test_cpu_segment(change: dict[str, Any], why: str) -> None:
    refuse(with_model(cpu(**change), on_cpu()), why)


def test_the_plan_is_checked() -> None:
    refuse(with_model(lambda m: replace(m, segments=()), chain()), "model 'main': the end of the model .*'y'")
