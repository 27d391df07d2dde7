"""Mistakes that compilers and runtimes of integer networks are known for, one edit each: what the suite has to catch.

`old` stands exactly once in its file (tests/mutation/test_mutants.py sees to that), so a change of the numerics that
moves a line has to say here what the same mistake looks like now. `tests` are the parts of the suite that are asked,
none of which needs more than this repository, save those of AArch64: they need QEMU (tests/exact/aarch64.py). A mistake
made the same way in the reference and in the JIT is caught by what knows the right integers from elsewhere: the
vendor's worked numbers, exact fractions, and ONNX Runtime.
"""

from __future__ import annotations

from dataclasses import dataclass

NUMERICS, JIT = "runtime/numerics.py", "runtime/jit/numerics.py"
DERIVE = "hbc/ir/fixed_point"
LAW = "tests/unit/runtime/test_numerics.py"
SINGLE = "tests/differential/test_single_ops.py"
EVERY = "tests/differential/test_every_op.py"


@dataclass(frozen=True)
class Edit:
    """One replacement of a text that stands once in a file (relative to the repository's root)."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """One planted mistake: its kind, its edits, and the tests of which at least one has to fail."""

    name: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


def _one(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, (Edit(file, old, new),), tests)


REFERENCE = (
    _one("half down instead of half up", NUMERICS, "return math.floor(x + 0.5)", "return math.ceil(x - 0.5)", LAW),
    _one(
        "ties of a shift go down", NUMERICS,
        "np.where(s > 0, np.int64(1) << np.maximum(s - 1, 0), 0)",
        "np.where(s > 0, (np.int64(1) << np.maximum(s - 1, 0)) - 1, 0)", LAW, "tests/exact/test_eltwise.py",
    ),
    _one(
        "half away becomes half to even", NUMERICS,
        "return whole + np.where(np.abs(v - whole) >= 0.5, np.copysign(1.0, v), 0.0)", "return np.rint(v)", LAW,
    ),
    _one(
        "a multiplier of 2^15 keeps its shift", NUMERICS,
        "    if mult == 1 << bits:\n", "    if mult > 1 << bits:\n", LAW,
    ),
    _one("pre-shift one too small", NUMERICS, "useful.bit_length() - 15)", "useful.bit_length() - 16)", LAW),
    _one(
        "the rounding term is forgotten", NUMERICS,
        "round_half_up(0.5 / m) if rounding_in_bias else 0", "0", LAW,
    ),
    _one(
        "sat16 before the pre-shift", NUMERICS,
        "np.clip(a >> np.asarray(pre_shift, np.int64), -I16_MAX - 1, I16_MAX) * mult",
        "(np.clip(a, -I16_MAX - 1, I16_MAX) >> np.asarray(pre_shift, np.int64)) * mult",
        LAW, "tests/exact/test_conv.py",
    ),
    _one(
        "form A rounds twice", NUMERICS,
        "scaled = narrow >> post if scheme is Scheme.FORM_A else round_shift_half_up(narrow, post)",
        "scaled = round_shift_half_up(narrow, post)", LAW, "tests/exact/test_conv.py",
    ),
    _one(
        "zero point added after the clamp", NUMERICS,
        "    return np.clip(scaled + zero_point, lo, hi)\n", "    return np.clip(scaled, lo, hi) + zero_point\n",
        LAW, "tests/exact/test_conv.py",
    ),
    _one(
        "the accumulator is not saturated to i32", NUMERICS,
        "a = np.clip(np.asarray(acc, np.int64), I32_MIN, I32_MAX)", "a = np.asarray(acc, np.int64)",
        LAW, "tests/exact/test_conv.py", "tests/exact/test_eltwise.py",
    ),
    _one(
        "the addend's zero point has the wrong sign", NUMERICS,
        "product = (np.asarray(q, np.int64) - zero_point)", "product = (np.asarray(q, np.int64) + zero_point)",
        LAW, "tests/exact/test_conv.py",
    ),
    _one(
        "NaN quantises to the smallest integer", NUMERICS,
        "    v = np.where(np.isnan(v), np.float32(0), v)\n", "    v = np.where(np.isnan(v), np.float32(-1e30), v)\n",
        LAW, "tests/exact/test_quant.py",
    ),
    _one(
        "dequantize multiplies before it subtracts", NUMERICS,
        "centred = np.asarray(q, np.int64) - np.asarray(zero_point, np.int64)", "centred = np.asarray(q, np.int64)",
        LAW, "tests/exact/test_quant.py",
    ),
    _one(
        "table entries are floored", NUMERICS,
        "np.floor(_between(y, -(2.0**40), 2.0**40) + 0.5)", "np.floor(_between(y, -(2.0**40), 2.0**40))", LAW,
    ),
    _one(
        "padding with 0 instead of the zero point", "runtime/reference/conv.py",
        "constant_values=op.pad_value)", "constant_values=0)", "tests/exact/test_conv.py", SINGLE,
    ),
    _one(
        "rows and columns of the stride swapped", "runtime/reference/conv.py",
        "rows = slice(y, y + (oh - 1) * op.strides[0] + 1, op.strides[0])",
        "rows = slice(y, y + (oh - 1) * op.strides[1] + 1, op.strides[1])", "tests/exact/test_conv.py",
    ),
    _one(
        "groups of output channels interleaved", "runtime/reference/conv.py",
        "w.reshape(group, o // group, cg)", "w.reshape(o // group, group, cg).swapaxes(0, 1)",
        "tests/exact/test_conv.py",
    ),
    _one(
        "a max pool's border counts as 0", "runtime/reference/pool.py",
        "lowest = int(np.iinfo(x.dtype).min)", "lowest = 0", "tests/exact/test_pool.py",
    ),
    _one(
        "a sum forgets the zero point", "runtime/reference/reduce.py",
        "acc = centred(operand(ins, 0), op.x_zero_point).sum(", "acc = centred(operand(ins, 0), 0).sum(",
        "tests/exact/test_reduce.py",
    ),
    _one(
        "interpolation past the last entry", "runtime/reference/lut.py",
        "entry = np.minimum(position >> shift, 63)", "entry = np.minimum(position >> shift, 62)",
        "tests/exact/test_lut.py",
    ),
)  # fmt: skip

MACHINE_CODE = (
    _one(
        "logical instead of arithmetic shift", JIT,
        "scaled = e.b.ashr(product, post) if scheme", "scaled = e.b.lshr(product, post) if scheme",
        "tests/exact/test_conv.py",
    ),
    _one(
        "no half step where the shift is 1", JIT,
        'half = e.b.zext(e.b.icmp_signed(">", shift, const(x.type, 0)), x.type)',
        'half = e.b.zext(e.b.icmp_signed(">", shift, const(x.type, 1)), x.type)',
        "tests/exact/test_eltwise.py", "tests/exact/test_quant.py",
    ),
    _one(
        "the accumulator wraps instead of saturating", JIT,
        "e.resize(saturate(e, x, I32_MIN, I32_MAX), I32)", "e.resize(x, I32)",
        "tests/exact/test_conv.py", "tests/exact/test_matmul.py", "tests/exact/test_eltwise.py",
    ),
    _one(
        "a negative shift is ignored", JIT,
        'return e.b.select(e.b.icmp_signed(">=", s, zero), right, left)', "return right", "tests/exact/test_conv.py",
    ),
    _one(
        "a reciprocal instead of the division", JIT,
        'e.overloaded("llvm.nearbyint", e.b.fdiv(v, scale))',
        'e.overloaded("llvm.nearbyint", e.b.fmul(v, e.b.fdiv(const(v.type, 1.0), scale)))',
        "tests/exact/test_quant.py",
    ),
    _one(
        "the table starts at 127", "runtime/jit/kernels/lut.py",
        "middle = k.at(k.ins[1], 128,", "middle = k.at(k.ins[1], 127,", "tests/exact/test_lut.py",
    ),
    _one(
        "a window's first tap lies one too far", "runtime/jit/kernels/pool.py",
        "first = ceil_div(k.smax(k.b.sub(i64(0), start), i64(0)))",
        "first = ceil_div(k.smax(k.b.sub(i64(1), start), i64(0)))", "tests/exact/test_pool.py",
    ),
    _one(
        "an average divides out the zero point of all taps", "runtime/jit/kernels/pool.py",
        "count = k.b.mul(rows, columns)", "count = i64(op.kernel[0] * op.kernel[1])", "tests/exact/test_pool.py",
    ),
    _one(
        "the kernel of a transposed convolution is not turned", "runtime/jit/kernels/conv.py",
        "turned = None if values is None else values[:, ::-1, ::-1] if isinstance(op, ConvTranspose2d) else values",
        "turned = values",
        "tests/exact/test_conv_transpose.py",
    ),
    _one(
        "pixels beside the image are not filled", "runtime/jit/window.py",
        'inside = k.b.and_(k.b.icmp_signed(">=", virtual, i64(0)), k.b.icmp_signed("<", at, i64(axis.size)))',
        'inside = k.b.icmp_signed("<", at, i64(axis.size + 1))', "tests/exact/test_conv.py",
    ),
    _one(
        "the odd last row of a product is dropped", "runtime/jit/kernels/matmul.py",
        "    if s.k % per_step:\n", "    if s.k % per_step > 1:\n", "tests/exact/test_matmul.py",
    ),
    _one(
        "bilinear weights of rows and columns swapped", "runtime/jit/kernels/resize.py",
        "for a in row_weights for b in column_weights", "for b in column_weights for a in row_weights",
        "tests/exact/test_resize.py",
    ),
)  # fmt: skip

BYTES = (
    _one(
        "what storing q + 128 adds is not taken off", "runtime/jit/kernels/byte_conv.py",
        "- (window.zero_point + offset) * sums", "- window.zero_point * sums", "tests/exact/test_conv.py",
    ),
    _one(
        "borders of byte convolutions filled with q, not q + 128", "runtime/jit/quad_conv.py",
        "(OFFSET if self.k.host.dot is Dot.U8S8 else 0)", "0", "tests/exact/test_conv.py",
    ),
    _one(
        "the last tile of a row does not move back", "runtime/jit/quad_conv.py",
        "pixel = k.smin(k.b.mul(number, i64(columns)), i64(width - columns))", "pixel = k.b.mul(number, i64(columns))",
        "tests/exact/test_bytes.py",
    ),
    _one(
        "a convolution's result is not clamped before it is added", "runtime/jit/quad_finish.py",
        "    a = e.smin(e.smax(a, const(a.type, what.lo)), const(a.type, what.hi))\n", "",
        "tests/exact/test_added_conv.py",
    ),
    _one(
        "the rounding term of a fused addition is lost", "runtime/jit/finish.py",
        "rounding = 1 << (add.shift - 1) if add.shift > 0 else 0", "rounding = 0", "tests/exact/test_added_conv.py",
    ),
    _one(
        "a fused addition may write over the image", "runtime/jit/fusion.py",
        "and not _overlap(model.tensors[conv.inputs[0]], tensors[2])", "", "tests/exact/test_added_conv.py",
    ),
    _one(
        "an image from the CPU may be written over while it is read", "runtime/jit/fusion.py",
        " and apart", "", "tests/exact/test_fusion.py",
    ),
    _one(
        "the last step of an odd segment is dropped", "runtime/jit/quad_plan.py",
        "return -(-elements // 4)", "return max(1, elements // 4)", "tests/exact/test_conv.py",
    ),
    _one(
        "the last block of a tail row is left out", "runtime/jit/quad_tail.py",
        "k.loop(0, -(-count * step // chunk))", "k.loop(0, count * step // chunk)", "tests/exact/test_bytes.py",
    ),
    _one(
        "a left byte is taken from the row before", "runtime/jit/quad_tail.py",
        "return number // self.bytes, self.start", "return max(0, number - 1) // self.bytes, self.start",
        "tests/exact/test_bytes.py",
    ),
    _one(
        "the second row of a tile reads the first one's rows", "runtime/jit/quad_conv.py",
        "line = self.row_bytes * w.rows.stride", "line = 0", "tests/exact/test_conv.py",
    ),
    _one(
        "a column beside the image counts as inside", "runtime/jit/quad_depthwise.py",
        "max(0, min(reach, axis.size - left))", "max(0, min(reach, axis.size - left + 1))", "tests/exact/test_bytes.py",
    ),
    _one(
        "words of two vectors in the wrong order", "runtime/jit/quad_conv.py",
        "packed = np.ascontiguousarray(np.moveaxis(parts, 3, 4))", "packed = np.ascontiguousarray(parts)",
        "tests/exact/test_bytes.py",
    ),
    _one(
        "a tensor stored as q + 128 has a reader that does not know", "runtime/jit/offset.py",
        "self.barred.update(i for _, i in bytes_)", "pass", "tests/unit/runtime/test_jit_engine.py",
    ),
    _one(
        "a product near a tie is trusted", "runtime/jit/numerics.py",
        "e.b.fsub(const(F32, 0.5 - 2.0**-20), margin)", "const(F32, 1.0)", "tests/exact/test_fusion.py",
    ),
)  # fmt: skip

ARM = "tests/exact/test_aarch64.py"
AARCH64 = (
    _one(
        "two steps beyond the last four are lost, of bytes", "runtime/jit/quad_tile.py",
        "e.b.and_(e.b.lshr(steps, one), one), state, several(2)", "ir.Constant(I64, 0), state, several(2)", ARM,
    ),
    _one(
        "steps beyond the last four are lost, of words", "runtime/jit/tiles.py",
        "e.b.and_(steps, i64(3))", "e.b.and_(steps, i64(1))", "tests/exact/test_matmul.py",
    ),
    _one(
        "channels of a chunk that isn't full count as side by side", "runtime/jit/finish.py",
        "(shape.vectors == 1 or shape.columns % shape.width == 0)", "shape.columns >= shape.width",
        "tests/exact/test_conv.py",
    ),
    _one(
        "a product of the lowest words saturates", "runtime/jit/kernels/byte_conv.py",
        "int(mult.min(initial=0)) == -I16_MAX - 1", "int(mult.min(initial=0)) == -I16_MAX - 2", ARM,
    ),
    _one(
        "the largest post shift is one too small", "runtime/jit/quad_conv.py",
        "np.minimum(post + 1, 15)", "np.minimum(post + 1, 8)", ARM,
    ),
    _one(
        "a depthwise image stands on zeros", "runtime/jit/quad_depthwise.py", "is Dot.U8S8 else w.fill",
        "is Dot.U8S8 else 0", ARM,
    ),
    _one(
        "quarters of a table overlap", "runtime/jit/byte_lookup.py",
        "index = k.b.sub(index, const(v.type, 64))", "index = k.b.sub(index, const(v.type, 63))", ARM,
    ),
    _one(
        "sums of words lose their constant", "runtime/jit/quad_finish.py",
        "total = e.b.add(e.b.add(x, y), rows.load(SUM + 1, 0))", "total = e.b.add(x, y)", ARM,
    ),
)  # fmt: skip

PAIRS = (
    _one(
        "sums of merged steps may leave i16", "runtime/jit/pair_pack.py",
        "MOST_POSITIVE = 258", "MOST_POSITIVE = 259", "tests/unit/runtime/test_jit_pairs.py",
    ),
    _one(
        "a weight of −128 is turned round", "runtime/jit/pair_pack.py",
        "if signed and main.min(initial=0) == -128", "if signed and main.min(initial=0) < -128",
        "tests/exact/test_bytes.py",
    ),
    _one(
        "the steps behind the last whole group are dropped", "runtime/jit/pair_conv.py",
        "tail=self.steps % plan.merge", "tail=0", "tests/exact/test_bytes.py",
    ),
    _one(
        "the last pixel of a row is not done", "runtime/jit/pair_conv.py",
        "        if rest:\n", "        if rest > 1:\n", "tests/exact/test_bytes.py",
    ),
    _one(
        "steps that were taken out read the first tap", "runtime/jit/pair_pack.py",
        "offset = row * row_bytes +", "offset = 0 * row +", "tests/unit/runtime/test_jit_pairs.py",
    ),
    _one(
        "borders below zero count as bytes without sign", "runtime/jit/pair_conv.py",
        "signed = not (positive and 0 <= window.fill + window.zero_point <= 127)", "signed = not positive",
        "tests/exact/test_bytes.py",
    ),
    _one(
        "one operand without negative numbers is taken for a proof", "runtime/jit/ranges.py",
        "bool(read) and all(i in known for i in read)", "any(i in known for i in read)",
        "tests/unit/runtime/test_jit_pairs.py",
    ),
)  # fmt: skip

PRODUCT, BY_MACHINE = "runtime/jit/quad_matmul.py", "tests/exact/test_matmul.py"
PRODUCTS = (
    _one(
        "byte product: rows behind the last four are dropped", PRODUCT, "        if p.k % 4:\n",
        "        if p.k % 4 > 1:\n", BY_MACHINE,
    ),
    _one(
        "byte product: the last run of rows moves back too far", PRODUCT,
        "i64(p.m - self.run))", "i64(p.m - self.run - 1))", BY_MACHINE,
    ),
    _one(
        "byte product: the last chunk does not move back", PRODUCT,
        "[k.smin(k.b.mul(chunk, i64(plan.width)), i64(plan.columns - plan.width))]",
        "[k.b.mul(chunk, i64(plan.width))]",
        BY_MACHINE,
    ),
    _one(
        "byte product: what q + 128 adds is not taken off", PRODUCT, "(OFFSET if dot is Dot.U8S8 else 0) +", "0 +",
        BY_MACHINE,
    ),
    _one(
        "byte product: the sum of a row forgets its last bytes", PRODUCT, "whole, length, [total],",
        "whole, whole, [total],", BY_MACHINE,
    ),
    _one(
        "byte product: every tile of a run has the first rows' terms", PRODUCT, "self.k.at(self.terms, pixel, 4)",
        "self.terms", BY_MACHINE,
    ),
    _one(
        "byte product: two vectors in the wrong order", PRODUCT, "for part in range(parts) for j in (0, 1)",
        "for j in (0, 1) for part in range(parts)", BY_MACHINE,
    ),
    _one(
        "byte product: a panel serves the next chunk, too", PRODUCT, 'k.b.icmp_signed("==", number, i64(0)), k.b',
        'k.b.icmp_signed("==", number, i64(-1)), k.b', BY_MACHINE,
    ),
    _one(
        "form B in words: half a step is not added", "runtime/jit/quad_finish.py",
        "y = e.b.ashr(e.b.add(y, const(y.type, 1)), const(y.type, 1))", "y = e.b.ashr(y, const(y.type, 1))", BY_MACHINE,
    ),
    _one(
        "form B in words: the least post shift is that of form A", "runtime/jit/quad_conv.py",
        "(16 if host.lanes == 16 else 18) + rounds(scheme)", "16 if host.lanes == 16 else 18", BY_MACHINE,
    ),
    _one(
        "form B in words: half a step is not added on AArch64", "runtime/jit/quad_finish.py",
        "llvm.aarch64.neon.srhadd.v8i16", "llvm.aarch64.neon.shadd.v8i16", ARM,
    ),
)  # fmt: skip

DERIVATION = (
    _one(
        "weights per input channel", f"{DERIVE}/conv.py",
        "np.asarray(quant_of(w).scale, np.float64)\n", "np.asarray(quant_of(w).scale[::-1], np.float64)\n", SINGLE,
    ),
    _one(
        "the weight's zero point added", f"{DERIVE}/conv.py",
        "centred = w.astype(np.int64) - zp", "centred = w.astype(np.int64) + zp", SINGLE,
    ),
    _one(
        "the input's zero point left out of the bias", f"{DERIVE}/conv.py",
        "- scalar_zero_point(x) * column_sums + rounding", "+ rounding", SINGLE,
    ),
    _one(
        "subtraction adds", f"{DERIVE}/eltwise.py",
        "sign = -1.0 if isinstance(op, Sub) else 1.0", "sign = 1.0",
        f"{EVERY}::test_symmetric[bpu-Sub]", f"{EVERY}::test_symmetric[onnx-Sub]",
    ),
    _one(
        "a mean divides by the last axis alone", f"{DERIVE}/pool.py",
        "count = math.prod(x.shape[a] for a in op.axes) if isinstance(op, ReduceMean) else 1",
        "count = x.shape[op.axes[-1]] if isinstance(op, ReduceMean) else 1",
        f"{EVERY}::test_symmetric[bpu-ReduceMean]",
    ),
    _one(
        "relu's clamp at 0 instead of the zero point", f"{DERIVE}/params.py",
        "return int(np.clip(np.rint(x / s) + zp, lo, hi))", "return int(np.clip(np.rint(x / s), lo, hi))",
        "tests/differential/test_spatial.py::test_conv",
    ),
)  # fmt: skip

BOTH = (
    Mutant(
        "form B without its half step, in reference and JIT",
        (
            Edit(NUMERICS, "Scheme.FORM_A else round_shift_half_up(narrow, post)", "Scheme.FORM_A else narrow >> post"),
            Edit(
                JIT,
                "Scheme.FORM_A else round_shift_half_up(e, product, post)",
                "Scheme.FORM_A else e.b.ashr(product, post)",
            ),
        ),
        (LAW,),
    ),
    Mutant(
        "borders of a convolution hold 0, in reference and JIT",
        (
            Edit("runtime/reference/conv.py", "constant_values=op.pad_value)", "constant_values=0)"),
            Edit("runtime/jit/kernels/conv.py", "rows, columns, op.pad_value)", "rows, columns, 0)"),
        ),
        (SINGLE,),
    ),
    Mutant(
        "outside positions of an average count, in the derivation",
        (Edit(f"{DERIVE}/pool.py", "op.counts().reshape(-1)", "np.full(op.counts().size, float(np.prod(op.kernel)))"),),
        (f"{EVERY}::test_symmetric[bpu-AveragePool]",),
    ),
)

PHASES = "tests/exact/test_conv_transpose.py::test_phases_of_a_stride"
POOL = "tests/exact/test_pool.py::test_largest_of_windows_at_edges"
LUT, ELTWISE = "tests/exact/test_lut.py", "tests/exact/test_eltwise.py"
LIGHT = (  # kernels other than convolutions
    _one(
        "a segment's last entry out of reach", "runtime/jit/kernels/lut.py",
        "entry = np.minimum((x - first) >> shift, 63)", "entry = np.minimum((x - first) >> shift, 62)", LUT,
    ),
    _one(
        "a pool's first inner column one too early", "runtime/jit/kernels/max_pool.py",
        "low = min(ow, -(-op.pads[1] // op.strides[1]))", "low = min(ow, op.pads[1] // op.strides[1])", POOL,
    ),
    _one(
        "a pool's last inner column one too late", "runtime/jit/kernels/max_pool.py",
        "op.pads[1]) // op.strides[1] + 1))", "op.pads[1]) // op.strides[1] + 2))", POOL,
    ),
    _one(
        "a pool's rows combined without their last pixel", "runtime/jit/kernels/max_pool.py",
        "real = min(w, columns - pad)", "real = min(w - 1, columns - pad)", POOL,
    ),
    _one(
        "a phase that starts at the wrong tap", "runtime/jit/phases.py",
        "divmod(axis.pad - phase, s)", "divmod(axis.pad + phase, s)", PHASES,
    ),
    _one(
        "phases where rows are no whole pitches apart", "runtime/jit/phases.py", " and enough and even)",
        " and enough)", "tests/exact/test_bytes.py::test_transposed",
    ),
    _one(
        "a phase's padding rounded the wrong way", "runtime/jit/phases.py",
        "taps, 1, 1, pad)", "taps, 1, 1, pad + (tap > 0))", PHASES,
    ),
    _one(
        "the halves of a table exchanged where bytes are q + 128", "runtime/jit/byte_lookup.py",
        "(negative, positive) if is_offset(x) else (positive, negative)",
        "(positive, negative) if is_offset(x) else (negative, positive)", LUT,
    ),
    _one(
        "a table's last row left out", "runtime/jit/byte_lookup.py",
        "            for r in range(8 * half, 8 * half + 8):\n                y =",
        "            for r in range(8 * half, 8 * half + 7):\n                y =", LUT,
    ),
    _one(
        "a byte's row counted without saturation", "runtime/jit/byte_lookup.py",
        'k.overloaded("llvm.ssub.sat", index, const(v.type, ROW))', "k.b.sub(index, const(v.type, ROW))", LUT,
    ),
    _one(
        "a last block of rows one short", "runtime/jit/broadcast.py",
        "k.b.sub(i64(middle.size), first)", "k.b.sub(i64(middle.size - 1), first)", ELTWISE,
    ),
    _one(
        "rows written out once for all entries", "runtime/jit/broadcast.py",
        'k.b.or_(k.b.icmp_signed("==", number, i64(0)), k.b.icmp_signed("==", item, k.begin))',
        'k.b.icmp_signed("==", item, k.begin)', ELTWISE,
    ),
    _one(
        "a product's upper half shifted one too far", "runtime/jit/words.py",
        "const(words.type, shift - 17)", "const(words.type, shift - 16)", ELTWISE,
    ),
    _one(
        "the zero points of a sum left out where bytes are q + 128", "runtime/jit/kernels/eltwise.py",
        "zero_points = words.raised(a, op.lhs_zero_point), words.raised(b, op.rhs_zero_point)\n    start",
        "zero_points = op.lhs_zero_point, op.rhs_zero_point\n    start", "tests/exact/test_offset.py",
    ),
)  # fmt: skip

ENGINE = "tests/unit/runtime/test_jit_engine.py"
BATCHES = "tests/unit/runtime/test_session_batches.py"

THREADS = (
    _one(
        "a piece without its last item", "runtime/jit/share.py",
        "b.shl(b.sub(end, base), i64(32))", "b.shl(b.sub(b.sub(end, base), i64(1)), i64(32))", ENGINE,
    ),
    _one(
        "a thread alone leaves out the last item", "runtime/jit/share.py",
        "everything = b.shl(items, i64(32))", "everything = b.shl(b.sub(items, i64(1)), i64(32))", ENGINE,
    ),
    _one(
        "runs of one number", "runtime/jit/engine.py",
        "                self._runs += 1\n", "                self._runs = 1\n", ENGINE,
    ),
    _one(
        "a cut of a depthwise row without its last block", "runtime/jit/quad_depthwise.py",
        "with k.loop(low, high) as block:", "with k.loop(low, k.b.sub(high, i64(1))) as block:",
        "tests/exact/test_bytes.py",
    ),
    _one(
        "every batch reads the first one's inputs", "runtime/engines.py",
        "first + np.arange(count)[:, None] *", "first + 0 * np.arange(count)[:, None] *", BATCHES,
    ),
    _one(
        "batches left over are not run", "runtime/engines.py",
        "for n in range(done, count):", "for n in range(done + 1, count):", BATCHES,
    ),
)  # fmt: skip

SPLIT, SPLIT_TESTS = "runtime/jit/split_sum.py", "tests/exact/test_split_sums.py"

SUMS = (
    _one(
        "the last part of a long sum a step too short", SPLIT,
        "ends = [*range(size, steps, size), steps]", "ends = [*range(size, steps, size), steps - 1]", SPLIT_TESTS,
    ),
    _one(
        "the upper halves of weights worth one bit too little", SPLIT,
        "f.b.shl(value, const(value.type, part.shift))", "f.b.shl(value, const(value.type, part.shift - 1))",
        SPLIT_TESTS,
    ),
    _one(
        "a part begins where the one before began", "runtime/jit/convolve.py",
        "k.at(left, 4 * part.first)", "k.at(left, 4 * (part.first - part.steps) * (part.first > 0))", SPLIT_TESTS,
    ),
    _one(
        "parts of which only the sums of both signs fit", SPLIT,
        "sizes = np.abs(_by_step(half, segments).astype(np.int64)).sum",
        "sizes = np.abs(_by_step(half, segments).astype(np.int64) // 2).sum", SPLIT_TESTS,
    ),
)  # fmt: skip

FLAT, FLAT_TESTS = "runtime/jit/flat_depthwise.py", "tests/exact/test_bytes.py::test_depthwise_rows_of_every_length"
PLANES = "tests/exact/test_move.py::test_few_planes_become_pixels"

FEW_CHANNELS = (
    _one(
        "the last block of a flat row is left out", FLAT,
        "        starts.append(row - plan.width)\n", "        pass\n", FLAT_TESTS,
    ),
    _one(
        "a flat row's last bytes a place too far", FLAT,
        "last = w.columns.size * w.channels - width", "last = w.columns.size * w.channels - width + 1", FLAT_TESTS,
    ),
    _one(
        "filling one byte too far at a flat row's start", FLAT,
        "if 0 <= i - up < count else count", "if 0 < i - up < count else count", FLAT_TESTS,
    ),
    _one(
        "channels of a block counted from another one's", FLAT,
        "k.b.mul(part, i64(inverse))", "k.b.mul(part, i64(1))", FLAT_TESTS,
    ),
    _one(
        "the last pair of rows begins a row too late", FLAT,
        "i64(w.rows.out - plan.tile_rows))", "i64(w.rows.out - 1))", FLAT_TESTS,
    ),
    _one(
        "weights of the second row not moved down", FLAT,
        "((0, 0), (down, 4 * groups - kh - down), (0, 0))", "((0, 0), (0, 4 * groups - kh), (0, 0))", FLAT_TESTS,
    ),
    _one(
        "the last row of an image is not gathered", "runtime/jit/quad_conv.py",
        "count = (w.rows.out - 1) * w.rows.stride + w.rows.kernel\n",
        "count = (w.rows.out - 1) * w.rows.stride + w.rows.kernel - 1\n",
        "tests/exact/test_bytes.py::test_images_gathered_once_for_all_panels",
    ),
    _one(
        "a thread that begins within an image does not gather it", "runtime/jit/quad_conv.py",
        "k.b.add(k.b.mul(panel, i64(numbers)), number), k.begin)", "k.b.mul(panel, i64(numbers)), k.begin)",
        "tests/exact/test_bytes.py::test_images_gathered_once_for_all_panels",
    ),
    _one(
        "a run of pixels without its last one", "runtime/jit/kernels/move.py",
        "stop = k.smin(k.b.add(first, i64(PLANE_RUN)), i64(along.size))",
        "stop = k.smin(k.b.add(first, i64(PLANE_RUN - 1)), i64(along.size))", PLANES,
    ),
    _one(
        "pixels where they would lie densely, though phases share rows", "runtime/jit/phases.py",
        "return Spread(self.first, self.pixel, self.line, self.image)",
        "return Spread(self.first, self.pixel, self.line, self.line)", PHASES,
    ),
    _one(
        "half a step forgotten in wide arithmetic", JIT,
        "return WideScale(e.resize(multiplier, I64), e.b.sub(shift, half), half)",
        "return WideScale(e.resize(multiplier, I64), shift, e.b.sub(half, half))", "tests/exact/test_split_sums.py",
    ),
)  # fmt: skip

MUTANTS: tuple[Mutant, ...] = (
    *REFERENCE, *MACHINE_CODE, *BYTES, *PAIRS, *AARCH64, *PRODUCTS, *DERIVATION, *BOTH, *LIGHT, *THREADS, *SUMS,
    *FEW_CHANNELS,
)  # fmt: skip
