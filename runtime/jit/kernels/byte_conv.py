"""Conv2d and ConvTranspose2d of bytes by dot products of four, where the host has them (`quad_plan.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...isa import Conv2d, ConvTranspose2d, Matmul, Scheme
from ...numerics import I16_MAX
from ...program import Tensor
from ...types import DType
from ..convolve import Operands
from ..finish import Finish, Sum, constant
from ..flat_depthwise import FlatPlan, convolve_flat, flat_plan, pack_flat, takes_flat
from ..fused import AddedConv2d
from ..host import Dot, Host
from ..offset import OFFSET, is_offset
from ..pair_conv import convolve_pairs, pack_pairs, plan_pairs
from ..pair_plan import PairPlan
from ..quad_conv import QuadConvolution, convolve_quads, least_post_shift, pack_parameters, pack_quads
from ..quad_depthwise import convolve_depthwise, depthwise_plan, pack_depthwise, takes_depthwise
from ..quad_plan import QuadPlan, make_quad_plan, segments_of
from ..ranges import is_positive
from ..registry import Constants, KernelBuilder, Packed
from ..window import Window

Array = npt.NDArray[Any]
AnyConv = Conv2d | ConvTranspose2d | Matmul


@dataclass(frozen=True)
class ByteVariant:
    """The packing variant: the plan, whether any pre-shift is not 0, and what an AddedConv2d does to its results."""

    plan: QuadPlan
    shifts: bool
    sum: Sum | None = None


def takes_quads(window: Window, image: Tensor, weight: np.dtype[Any], host: Host, *, quick: bool) -> bool:
    """True where byte dot products serve: bytes on both sides; one input channel per group only with a fast finish."""
    if host.dot is Dot.NONE or weight != np.int8 or image.dtype is not DType.I8:
        return False
    if window.is_depthwise:
        positive = is_positive(image) and window.fill >= 0
        how = {"fast": quick, "offset": is_offset(image) or positive}
        return takes_flat(window, host, **how) or takes_depthwise(window, host, **how)
    return True


def is_quick(op: AnyConv, out: Tensor, constants: Constants, host: Host) -> bool:
    """True where the fast finish serves: 8 bits by form A or B, and no live channel's post shift too small for it."""
    if op.scheme not in {Scheme.FORM_A, Scheme.FORM_B} or out.dtype is not DType.I8:
        return False
    mult, post = constant(constants, 3, "multiplier"), constant(constants, 5, "post_shift")
    if host.dot is Dot.S8S8 and int(mult.min(initial=0)) == -I16_MAX - 1:
        return False
    live = np.broadcast_to(post, mult.shape)[mult != 0]
    return int(live.min(initial=31)) >= least_post_shift(host, op.scheme)


def pack_byte_window(
    op: AnyConv,
    window: Window,
    weight: Array,
    bias: Array | None,
    image: Tensor,
    constants: Constants,
    host: Host,
    *,
    quick: bool,
) -> Packed:
    """Start values and parameters, then the weights in panels. `quick`: see `is_quick`."""
    rows = [constant(constants, index, name) for index, name in parameter_names(op)]
    plan: QuadPlan
    further: tuple[Array, ...] = ()
    turned = weight[:, ::-1, ::-1] if isinstance(op, ConvTranspose2d) else weight
    if host.dot is Dot.PAIRS and not window.is_depthwise:
        pairs = pack_pairs(turned, window, host, fast=quick, positive=is_positive(image))
        plan, panels, further = pairs.plan, pairs.panels, (pairs.further,)
    else:
        plan = _plan(window, image, weight, host, quick=quick)
    sums = weight.reshape(len(weight), -1).sum(axis=1, dtype=np.int32).astype(np.int64)  # modulo 2^32: see `wrapped`
    offset = OFFSET if host.dot is Dot.U8S8 else 0
    # what is multiplied is q + offset, what the sum wants is q − zero_point
    starts = (0 if bias is None else bias.astype(np.int64)) - (window.zero_point + offset) * sums
    group = 1 if window.is_depthwise else window.group
    parameters = pack_parameters(plan, host, group, wrapped(starts), rows, op.scheme)
    shifts = op.scheme in {Scheme.FORM_A, Scheme.FORM_B} and bool(np.any(rows[1]))
    if window.is_depthwise:
        panels = pack_flat(turned, plan) if isinstance(plan, FlatPlan) else pack_depthwise(turned, plan)
    elif not further:
        panels = pack_quads(turned, plan, group, segments_of(window))
    return Packed((parameters, panels, *further), ByteVariant(plan, shifts))


def packs(window: Window, image: Tensor, weight: Array, host: Host, *, quick: bool) -> bool:
    """True where results leave the registers by the fast finish."""
    return _plan(window, image, weight, host, quick=quick).packed


def _plan(window: Window, image: Tensor, weight: Array, host: Host, *, quick: bool) -> QuadPlan:
    if window.is_depthwise:
        flat = takes_flat(window, host, fast=quick, offset=True)
        return flat_plan(window, host) if flat else depthwise_plan(window, host)
    if host.dot is Dot.PAIRS:
        return plan_pairs(window, host, weight.size, fast=quick, positive=is_positive(image))
    return make_quad_plan(window, host, weight.size, fast=quick, offset=is_offset(image))


def wrapped(values: Array) -> Array:
    """Modulo 2^32, as the accumulators are: what the offset adds comes off again exactly."""
    return np.asarray(values, np.int64).astype(np.uint32).view(np.int32)


def emit_byte_window(k: KernelBuilder, window: Window, finish: Finish, at: Operands) -> None:
    """The kernel."""
    variant: ByteVariant = k.variant
    if window.is_depthwise:
        if isinstance(variant.plan, FlatPlan):
            convolve_flat(k, window, variant.plan, finish, at, shifts=variant.shifts)
        else:
            convolve_depthwise(k, window, variant.plan, finish, at, shifts=variant.shifts)
        return
    convolution = QuadConvolution(window, variant.plan, finish, variant.shifts)
    if isinstance(variant.plan, PairPlan):
        convolve_pairs(k, convolution, at)
    else:
        convolve_quads(k, convolution, at)


def finish_of(op: AnyConv, out: Tensor, addend: Tensor | None) -> Finish:
    """The finish of an instruction; `addend` is the operand that is added, to accumulators or to results."""
    if isinstance(op, AddedConv2d):
        assert addend is not None
        own = op.scheme, op.zero_point, op.clamp_min, op.clamp_max, DType.I8
        return Finish(*own, sum=Sum.of(op.add, addend, out))
    if isinstance(op, Conv2d) and addend is not None:
        return Finish.of(op, out, addend, op.addend_zero_point)
    return Finish.of(op, out)


def parameter_names(op: AnyConv) -> list[tuple[int, str]]:
    """(operand index, name) of the per-channel parameters, in the order in which finishing reads them."""
    own = [(3, "multiplier"), (4, "pre_shift"), (5, "post_shift")]
    added = [(7, "addend_multiplier"), (8, "addend_shift")]
    count = {Scheme.NONE: (0, 0), Scheme.FLOAT: (1, 1)}.get(op.scheme, (3, 2))
    has_addend = isinstance(op, Conv2d) and op.inputs[7] >= 0
    return own[: count[0]] + (added[: count[1]] if has_addend else [])
