"""The plan checker: sound plans pass, and every way to lose a byte that is still needed is named."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hbc_runtime import isa
from hbc_runtime.plan import check_plan
from hbc_runtime.program import BpuSegment, CpuSegment, Model, Storage
from hbc_runtime.types import DType
from tests.sketch import Sketch
from tests.strategies import models

CLAMP = {"clamp_min": -9, "clamp_max": 9}


def moved(model: Model, **offsets: int) -> Model:
    """The model with the named tensors at other places in the arena."""
    tensors = tuple(replace(t, offset=offsets.get(t.name, t.offset)) for t in model.tensors)
    return replace(model, tensors=tensors)


def diamond(size: int = 64) -> Model:
    """x → a; a → b; a + b → y. Both a and b must live until the add."""
    m = Sketch()
    x = m.input((size,), DType.I8, name="x")
    a = m.emit(isa.Clamp, [x], (size,), DType.I8, name="a", **CLAMP)
    b = m.emit(isa.Clamp, [a], (size,), DType.I8, name="b", **CLAMP)
    c = m.emit(isa.Maximum, [a, b], (size,), DType.I8, name="c")
    m.emit(isa.Clamp, [c], (size,), DType.I8, name="y", **CLAMP)
    return m.finish()


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(models(cpu=True, max_size=6))
def test_the_sketchs_first_fit_plans_are_sound(model: Model) -> None:
    check_plan(model)


def test_a_reshape_of_a_constant_may_stay_in_place() -> None:
    m = Sketch()
    flat = m.emit(isa.Reshape, [m.constant([[1, 2], [3, 4]], DType.I8)], (4,), DType.I8, alias=True)
    m.emit(isa.Clamp, [flat], (4,), DType.I8, name="y", **CLAMP)
    model = m.finish()
    assert model.tensors[flat].storage is Storage.CONSTANT
    check_plan(model)


def test_a_constant_that_is_no_reshape_in_place_is_not_written() -> None:
    m = Sketch()
    x = m.constant([1, 2, 3, 4], DType.I8)
    a = m.emit(isa.Clamp, [x], (4,), DType.I8, name="a", **CLAMP)
    m.emit(isa.Clamp, [a], (4,), DType.I8, name="y", **CLAMP)
    model = m.finish()
    tensors = tuple(replace(t, storage=Storage.CONSTANT) if i == a else t for i, t in enumerate(model.tensors))
    with pytest.raises(ValueError, match=r"writes 'a' .* which lies in CONSTANT"):
        check_plan(replace(model, tensors=tensors))


def test_a_result_on_its_own_operand_is_refused() -> None:
    with pytest.raises(ValueError, match=r"in instruction 1 \(CLAMP\) .* result 'b' .* overlaps the operand 'a'"):
        check_plan(moved(diamond(), b=0))


@pytest.mark.parametrize("offset", [1, 63])
def test_one_byte_of_overlap_is_enough(offset: int) -> None:
    with pytest.raises(ValueError, match=r"result 'b' .* overlaps the operand 'a'"):
        check_plan(moved(diamond(), b=offset))


def test_neighbours_do_not_overlap() -> None:
    check_plan(moved(diamond(), a=64, b=0, c=128))
    check_plan(moved(diamond(), a=0, b=64, c=128))


def test_a_stale_read_names_the_reader_the_victim_and_the_culprit() -> None:
    m = Sketch()
    x = m.input((64,), DType.I8, name="x")
    a = m.emit(isa.Clamp, [x], (64,), DType.I8, name="a", **CLAMP)
    b = m.emit(isa.Clamp, [x], (64,), DType.I8, name="b", **CLAMP)
    m.emit(isa.Maximum, [a, b], (64,), DType.I8, name="y")
    why = r"instruction 2 \(MAXIMUM\) of segment 0 reads 'a' .*, whose bytes 'b' .* overwrote in instruction 1"
    with pytest.raises(ValueError, match=why):
        check_plan(moved(m.finish(), b=32, a=0))


def test_bytes_may_be_reused_once_nobody_needs_them() -> None:
    m = Sketch()
    x = m.input((64,), DType.I8)
    for i in range(10):
        x = m.emit(isa.Clamp, [x], (64,), DType.I8, name=f"t{i}", **CLAMP)
    model = m.finish()
    assert model.arena_size == 128
    check_plan(model)


def test_reading_what_nobody_wrote_is_refused() -> None:
    model = diamond()
    (segment,) = model.segments
    assert isinstance(segment, BpuSegment)
    late = replace(segment, instructions=(*segment.instructions[1:], segment.instructions[0]))
    with pytest.raises(ValueError, match=r"instruction 0 \(CLAMP\) .* reads 'a' .* before anything writes it"):
        check_plan(replace(model, segments=(late,)))


def test_an_output_that_is_never_written_is_refused() -> None:
    model = diamond()
    (segment,) = model.segments
    assert isinstance(segment, BpuSegment)
    short = replace(segment, instructions=segment.instructions[:-1])
    with pytest.raises(ValueError, match=r"the end of the model \(output 'y'\) reads 'y' .* before anything writes it"):
        check_plan(replace(model, segments=(short,)))


def test_an_output_that_is_overwritten_is_refused() -> None:
    model = diamond()
    tensors = tuple(replace(t, storage=Storage.OUTPUT, offset=0) if t.name == "c" else t for t in model.tensors)
    with pytest.raises(ValueError, match=r"result 'y' .* overlaps the operand 'c'"):
        check_plan(replace(model, tensors=tensors))


def test_a_second_write_is_refused() -> None:
    model = diamond()
    (segment,) = model.segments
    assert isinstance(segment, BpuSegment)
    twice = replace(segment, instructions=(segment.instructions[0], *segment.instructions))
    with pytest.raises(ValueError, match=r"writes 'a' .*, which already has a value"):
        check_plan(replace(model, segments=(twice,)))


@pytest.mark.parametrize("storage", [Storage.INPUT, Storage.CONSTANT])
def test_only_arena_and_outputs_are_written(storage: Storage) -> None:
    model = diamond()
    tensors = tuple(replace(t, storage=storage) if t.name == "a" else t for t in model.tensors)
    with pytest.raises(ValueError, match="writes 'a'"):
        check_plan(replace(model, tensors=tensors))


# ---- reshapes


def reshaped(alias: bool) -> Model:
    """x → a; a as r; r and a → y: the reshape's operand is still read behind it."""
    m = Sketch()
    x = m.input((8, 8), DType.I8, name="x")
    a = m.emit(isa.Clamp, [x], (8, 8), DType.I8, name="a", **CLAMP)
    r = m.emit(isa.Reshape, [a], (64,), DType.I8, name="r", alias=alias)
    b = m.emit(isa.Clamp, [r], (64,), DType.I8, name="b", **CLAMP)
    m.emit(isa.Concat, [b, r], (128,), DType.I8, name="y", axis=0)
    m.emit(isa.Clamp, [a], (8, 8), DType.I8, name="z", **CLAMP)
    return m.finish()


def test_a_reshape_in_place_shares_its_operands_bytes() -> None:
    model = reshaped(alias=True)
    assert len({t.offset for t in model.tensors if t.name in {"a", "r"}}) == 1
    check_plan(model)


def test_a_reshape_elsewhere_is_a_copy() -> None:
    check_plan(reshaped(alias=False))


def test_a_reshape_half_over_its_operand_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(RESHAPE\) .* result 'r' .* overlaps the operand 'a'"):
        check_plan(moved(reshaped(alias=False), a=0, r=8))


def test_only_a_reshape_may_share() -> None:
    with pytest.raises(ValueError, match="overlaps the operand"):
        check_plan(moved(diamond(), a=0, b=0))


def test_overwriting_a_reshape_takes_its_operand_with_it() -> None:
    model = reshaped(alias=True)
    place = next(t.offset for t in model.tensors if t.name == "r")
    with pytest.raises(ValueError, match=r"result 'b' .* overlaps the operand 'r'"):
        check_plan(moved(model, b=place))


def test_a_reshape_of_an_input_writes_nothing() -> None:
    m = Sketch()
    x = m.input((8, 8), DType.I8)
    r = m.emit(isa.Reshape, [x], (64,), DType.I8, alias=True)
    m.emit(isa.Clamp, [r], (64,), DType.I8, **CLAMP)
    model = m.finish()
    assert model.tensors[r].storage is Storage.INPUT
    check_plan(model)


# ---- CPU segments


def on_cpu(**more: Any) -> Model:
    m = Sketch()
    a = m.emit(isa.Clamp, [m.input((64,), DType.I8)], (64,), DType.I8, name="a", **CLAMP)
    p, q = m.cpu([a], [((64,), DType.I8), ((64,), DType.I8)], b"onnx")
    m.emit(isa.Maximum, [p, q], (64,), DType.I8, name="y")
    model = m.finish()
    return moved(model, **{f"t{i}": offset for i, offset in zip((p, q), more.get("at", (64, 128)), strict=True)})


def test_a_cpu_segment_is_one_step() -> None:
    check_plan(on_cpu())
    with pytest.raises(ValueError, match=r"in segment 1 \('cpu'\) the result 't2' .* overlaps the operand 'a'"):
        check_plan(on_cpu(at=(0, 128)))
    with pytest.raises(ValueError, match=r"in segment 1 \('cpu'\) the result 't3' .* overlaps the result 't2'"):
        check_plan(on_cpu(at=(64, 96)))


# ---- against an independent, byte by byte replay


def bytewise(model: Model) -> bool:
    """Whether a plan is sound, by painting every byte with its writer. Slow, obvious."""
    paint: dict[tuple[Storage, int, int], int] = {}
    owner = {i: i for i, t in enumerate(model.tensors) if t.storage is Storage.CONSTANT}
    owner |= {info.tensor: info.tensor for info in model.inputs}

    def cells(i: int) -> list[tuple[Storage, int, int]]:
        t = model.tensors[i]
        return [(t.storage, t.index, t.offset + b) for b in range(t.nbytes)]

    def readable(i: int) -> bool:
        fixed = i in owner and model.tensors[owner[i]].storage in {Storage.INPUT, Storage.CONSTANT}
        return i in owner and (fixed or all(paint.get(c) == owner[i] for c in cells(i)))

    for segment in model.segments:
        for op in [segment] if isinstance(segment, CpuSegment) else segment.instructions:
            reads = [i for i in op.inputs if i >= 0]
            if not all(map(readable, reads)):
                return False
            if isinstance(op, isa.Reshape) and cells(reads[0]) == cells(op.outputs[0]):
                owner[op.outputs[0]] = owner[reads[0]]
                continue
            for i in op.outputs:
                owner[i] = i
                paint |= dict.fromkeys(cells(i), i)
            if not all(map(readable, [*reads, *op.outputs])):
                return False
    return all(readable(info.tensor) for info in model.outputs)


@st.composite
def plans(draw: Any) -> Model:
    """Clamps, maxima and reshapes of i8[4], some in CPU segments, at random places of a small arena."""
    m = Sketch()
    values = [m.input((4,), DType.I8)]
    for kind in draw(st.lists(st.sampled_from("cccmmrp"), min_size=2, max_size=8)):
        a, b = draw(st.sampled_from(values)), draw(st.sampled_from(values))
        if kind == "c":
            values.append(m.emit(isa.Clamp, [a], (4,), DType.I8, **CLAMP))
        elif kind == "m":
            values.append(m.emit(isa.Maximum, [a, b], (4,), DType.I8))
        elif kind == "r":
            values.append(m.emit(isa.Reshape, [a], (4,), DType.I8, alias=draw(st.booleans())))
        else:
            values.extend(m.cpu([a, b], [((4,), DType.I8)] * 2, b"onnx"))
    model = m.finish()
    places = draw(st.lists(st.integers(0, 24), min_size=len(model.tensors), max_size=len(model.tensors)))
    if draw(st.booleans()):  # mostly sound: neighbours at a distance, but for one
        places = [8 * i for i in range(len(places))]
        places[draw(st.integers(0, len(places) - 1))] = draw(st.integers(0, 64))
    for alias, root in m.aliases.items():
        places[alias] = places[root]
    tensors = [
        replace(t, offset=place) if t.storage is Storage.ARENA else t
        for t, place in zip(model.tensors, places, strict=True)
    ]
    return replace(model, tensors=tuple(tensors))


@settings(deadline=None, max_examples=300)
@given(plans())
def test_it_agrees_with_a_byte_by_byte_replay(model: Model) -> None:
    try:
        check_plan(model)
    except ValueError:
        assert not bytewise(model)
    else:
        assert bytewise(model)


def test_it_stays_quick_with_ten_thousand_instructions() -> None:
    m = Sketch()
    x = m.input((64,), DType.I8)
    held = [m.emit(isa.Clamp, [x], (64,), DType.I8, **CLAMP) for _ in range(5000)]
    for h in held:
        m.emit(isa.Clamp, [h], (64,), DType.I8, **CLAMP)
    outputs = {i: n for n, i in enumerate(m._outputs())}
    tensors = [
        replace(t, storage=Storage.OUTPUT, index=outputs[i]) if i in outputs else replace(t, offset=64 * i)
        for i, t in enumerate(m.tensors)
    ]
    ops = m.segments[0]
    assert isinstance(ops, list)
    infos = tuple(m._info(i) for i in outputs)
    small = replace(diamond(), inputs=(m._info(x),), outputs=infos, tensors=tuple(tensors))
    start = time.process_time()
    check_plan(replace(small, segments=(BpuSegment("bpu", tuple(ops)),)))
    assert time.process_time() - start < 5
