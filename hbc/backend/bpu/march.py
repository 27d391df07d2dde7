"""The marches, as data.

Each number carries its source; limits of op shapes are the vendor's published operator constraints. Sources: [hw]
product pages of the boards, [ops] operator constraint tables of the public manuals (J6/S100 for nash, J5/X5 for bayes,
X3 for bernoulli2), [num] `docs/numerics.md`, [perf] the vendor's performance files,
[assumed] not public: a guess, whose reasons docs/commands.md gives.
"""

from __future__ import annotations

from dataclasses import dataclass

from hbc.ir.semantics import MARCHES as NAMES
from hbc.ir.types import DType

MIB = 1 << 20


@dataclass(frozen=True)
class MarchSpec:
    """One BPU generation: what it computes with and how large its ops may be."""

    name: str
    boards: str
    cores: int  # [hw]
    tops: float  # peak int8 TOPS of the chip [hw]
    ddr_mb_per_s: int  # peak of the memory on the march's board, 10⁶ bytes: width times rate [assumed]
    lanes: int  # elements that an engine other than the tensor engine makes in a cycle [assumed]
    activations: tuple[DType, ...]  # [ops]
    weights: tuple[DType, ...]  # [ops]
    max_kernel: int  # conv, per axis [ops]
    max_conv_stride: int  # [ops]
    max_dilation: int  # [ops]
    max_conv_channels: int  # input channels per group [ops]
    max_plain_channels: int  # input channels of a convolution without groups [ops]
    max_conv_outputs: int  # output channels before the model's tail [ops]; bernoulli2: [assumed] as bayes's
    max_kernel_volume: int  # KH·KW·C [ops]
    max_conv_pad: int  # [ops]
    max_transpose_kernel: int  # [ops]
    max_transpose_stride: int  # [ops]
    max_transpose_channels: int  # [ops]
    min_transpose_kernel: int  # [ops]
    min_transpose_stride: int  # [ops]
    max_pool_kernel: int  # [ops]
    max_avg_kernel: int  # [ops]
    max_pool_stride: int  # [ops]
    max_pool_side: int  # rows, columns, channels of a max pool [ops] for bayes, else [assumed] as of a convolution
    max_global_pool: int  # H·W of a global average [ops]
    max_linear: int  # rows and columns of linear and matmul [ops]
    max_concat: int  # operands of a concat [ops]
    max_concat_size: int  # elements on an axis of what a concat gives [ops]; bernoulli2: [assumed] as bayes's
    max_batch: int  # [ops]
    max_tensor_gib: int  # of a tensor [ops]: nash's is that of a concat; bernoulli2: [assumed] as bayes's
    max_resize_side: int  # rows, columns, channels of a resize [ops] for bayes, else [assumed] as of a convolution
    elementwise_rank: int  # axes [ops] for bernoulli2; else 6, our runtime's own (bayes's manual says 10)
    max_outputs: int  # of a model, 0: any [ops]
    max_arg: int  # elements that an arg_max runs over [ops]
    on_chip_bytes: int  # of one core's memory for tiles [assumed]
    channel_block: int  # output channels that the tensor engine makes at once [ops] for nash, else [assumed]
    work_align: tuple[int, int, int] = (16, 16, 1)  # input, output channels, width that MACs round up to [assumed]
    input_channels: int = 1  # that an input's channels round up to: [perf] for bernoulli2, bayes-e, else [assumed]
    max_lut: int = 0  # elements that a table is looked up for, 0: any [ops]
    max_side: int = 65536  # rows, columns, channels of a convolution [ops]; bernoulli2: [assumed] as bayes's
    max_pool_pad: int = 256  # [ops] for nash, else [assumed]
    max_lut_batch: int = 4096  # the first axis of what is looked up [ops] for bayes; the others': [assumed]
    max_concat_channels: int = 0  # 0: any [ops]
    max_output_padding: int = 0  # of a transposed convolution, 0: any [ops]
    max_norm: int = 0  # H·W of a layer normalisation, 0: any [ops]
    max_sum_stride: int = 0  # of a convolution with a fused addition, 0: any [ops]
    reduced_axes: tuple[int, ...] = ()  # of [N,C,H,W] that a sum or mean may run over, (): any [ops]
    clock_mhz: int = 1000  # of the BPU [hw] for bernoulli2, bayes-e, nash-e (S100) and nash-m (S100P), else [assumed]
    tile_align: int = 32  # bytes: a tile's address is a multiple [hw] for nash's tensors, [assumed] on chip
    has_sub: bool = True  # [ops]
    has_grid_sample: bool = True  # [ops]
    has_composites: bool = False  # softmax and norms as their parts; else the CPU runs them by default [ops]
    has_gather: bool = True  # [ops]
    has_wide_transpose: bool = False  # a transposed convolution of i16 [ops]
    half_transpose_pad: bool = False  # a transposed convolution pads half its kernel at most [ops]
    dilates_by_powers: bool = False  # dilations are powers of 2 and multiples of the stride; else the stride is 1 [ops]
    wide_depthwise_stride: bool = False  # a depthwise convolution of i16 has odd strides or 2 [ops]
    has_arg_of_any_axis: bool = False  # else axis 1 of [N,C,H,W] alone [ops]

    @property
    def macs_per_cycle(self) -> int:
        """Peak i8 products of one core in a cycle: what the TOPS of the chip come to (a product and a sum are two)."""
        return int(self.tops * 1e6 / (2 * self.clock_mhz * self.cores))

    @property
    def reduced_axis_names(self) -> str:
        """`N, C`."""
        return ", ".join("NCHW"[a] for a in self.reduced_axes)

    @property
    def activation_names(self) -> str:
        """`i8 or i16`."""
        return " or ".join(d.text for d in self.activations)

    @property
    def weight_names(self) -> str:
        """`i8 or i16`."""
        return " or ".join(d.text for d in self.weights)


_BAYES = {
    "activations": (DType.I8, DType.I16), "weights": (DType.I8,),
    "max_kernel": 32, "max_conv_stride": 256, "max_dilation": 16, "max_conv_channels": 8192, "max_kernel_volume": 65535,
    "max_plain_channels": 8192, "max_conv_outputs": 16384, "max_outputs": 0,
    "max_conv_pad": 256, "max_transpose_kernel": 14, "max_transpose_stride": 14, "max_transpose_channels": 2048,
    "max_pool_kernel": 256, "max_avg_kernel": 256, "max_pool_stride": 256, "max_global_pool": 65536,
    "max_linear": 8192, "max_concat": 1024, "max_arg": 64, "channel_block": 16, "min_transpose_kernel": 1,
    "min_transpose_stride": 1, "max_pool_side": 8192, "max_concat_size": 65536, "max_batch": 4096, "max_tensor_gib": 1,
    "max_resize_side": 8192, "elementwise_rank": 6, "max_norm": 16384, "max_output_padding": 1,
    "max_sum_stride": 2, "reduced_axes": (1, 2, 3),
    "work_align": (8, 8, 8),
}  # fmt: skip
_NASH = {
    "activations": (DType.I8, DType.I16), "weights": (DType.I8, DType.I16),
    "max_kernel": 31, "max_conv_stride": 256, "max_dilation": 18, "max_conv_channels": 8192, "max_kernel_volume": 65536,
    "max_plain_channels": 8192, "max_conv_outputs": 8192, "max_outputs": 0,
    "max_conv_pad": 256, "max_transpose_kernel": 14, "max_transpose_stride": 14, "max_transpose_channels": 2048,
    "max_pool_kernel": 256, "max_avg_kernel": 256, "max_pool_stride": 256, "max_global_pool": 65535,
    "max_linear": 8192, "max_concat": 1024, "max_arg": 65535, "has_arg_of_any_axis": True, "has_composites": True,
    "channel_block": 16, "min_transpose_kernel": 1, "min_transpose_stride": 1, "max_pool_side": 65536,
    "max_concat_size": 131071, "max_batch": 4096, "max_tensor_gib": 2, "max_resize_side": 65536, "elementwise_rank": 6,
    "has_wide_transpose": True, "wide_depthwise_stride": True,
}  # fmt: skip

MARCHES: dict[str, MarchSpec] = {
    m.name: m
    for m in (
        MarchSpec(
            "bernoulli2", "RDK X3, J3", cores=2, tops=5, ddr_mb_per_s=12800, lanes=32,
            activations=(DType.I8,), weights=(DType.I8,),
            max_kernel=7, max_conv_stride=256, max_dilation=16, max_conv_channels=2048, max_kernel_volume=32768,
            max_conv_pad=256, max_transpose_kernel=14, max_transpose_stride=4, max_transpose_channels=2048,
            max_pool_kernel=64, max_avg_kernel=7, max_pool_stride=185, max_global_pool=8192,
            max_linear=2048, max_concat=1024, max_arg=64, has_sub=False, has_grid_sample=False,
            on_chip_bytes=MIB, channel_block=4, work_align=(4, 4, 8), input_channels=4, max_lut=8192,
            max_plain_channels=4096, max_conv_outputs=16384, max_outputs=32, min_transpose_kernel=2,
            min_transpose_stride=2,
            max_pool_side=65536, max_concat_size=65536, max_batch=128, max_tensor_gib=1, max_resize_side=65536,
            elementwise_rank=4, max_concat_channels=2048, max_sum_stride=2, reduced_axes=(0, 1), has_gather=False,
            half_transpose_pad=True, dilates_by_powers=True,
        ),
        MarchSpec("bayes", "J5, RDK Ultra", 2, 128, ddr_mb_per_s=51200, lanes=256, on_chip_bytes=4 * MIB, **_BAYES),  # type: ignore[arg-type]
        MarchSpec("bayes-e", "RDK X5", 1, 10, ddr_mb_per_s=17064, lanes=64, on_chip_bytes=2 * MIB, **_BAYES),  # type: ignore[arg-type]
        MarchSpec("nash-e", "J6E, RDK S100", 1, 80, ddr_mb_per_s=76800, lanes=256, on_chip_bytes=4 * MIB, **_NASH),  # type: ignore[arg-type]
        MarchSpec(
            "nash-m", "J6M, RDK S100P", 1, 128, ddr_mb_per_s=76800, lanes=256, on_chip_bytes=4 * MIB, clock_mhz=1500,
            **_NASH,  # type: ignore[arg-type]
        ),
        MarchSpec("nash-p", "J6P, RDK S600", 4, 560, ddr_mb_per_s=153600, lanes=512, on_chip_bytes=6 * MIB, **_NASH),  # type: ignore[arg-type]
    )
}  # fmt: skip
assert tuple(MARCHES) == NAMES
