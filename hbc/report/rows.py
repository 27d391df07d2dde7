"""What a report consists of: frozen rows, of names, numbers and sentences."""

from __future__ import annotations

from dataclasses import dataclass

# What rewrites absorb by the hundred. A reader of the table wants the layers; the JSON has everything.
QUANT_NODES = frozenset(
    {"QuantizeLinear", "DequantizeLinear", "HzQuantize", "HzDequantize", "HzCalibration", "Constant", "Initializer"}
)
DEVICES = ("bpu", "cpu", "host")  # where several ops of one node differ, the first of these speaks for the node
FOLDED = "folded"


@dataclass(frozen=True)
class NodeRow:
    """One node of the user's model: where it runs and why, the ops it became, the nodes that share those ops.

    `device` is bpu, cpu, host (quantise, dequantise and moves at the border) or folded (nothing left to run); `by` is
    then the pass that folded it, or `import`. `hint`: what to try, for a node on the CPU.
    """

    node: str
    op_type: str
    device: str
    reason: str
    ops: tuple[str, ...]
    fused_with: tuple[str, ...]
    hint: str = ""
    by: str = ""


@dataclass(frozen=True)
class LayerRow:
    """Nodes that became one computation, in order: `('Conv_1', 'BatchNorm_2', 'Relu_3')`.

    `types` says in which integers it is computed (`i8·i8 → i8`); MACs are 0 for what multiplies no matrices.
    """

    nodes: tuple[str, ...]
    op_types: tuple[str, ...]
    device: str
    ops: tuple[str, ...]
    types: str
    macs: int


@dataclass(frozen=True)
class OutputRow:
    """One output: `high_precision` where the accumulator itself (i32, with `scales` scales) leaves the BPU, not i8.

    `reason` says which op's accumulator it is, or why it is none.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    high_precision: bool
    scales: int
    reason: str = ""


@dataclass(frozen=True)
class TensorRow:
    """A tensor with something to say about it, and the node it comes from."""

    tensor: str
    node: str
    detail: str


@dataclass(frozen=True)
class RequantizeRow:
    """A tensor that gets another scale in a step of its own, and why."""

    tensor: str
    node: str
    before: str
    after: str
    why: str


@dataclass(frozen=True)
class ConstantRow:
    """A constant whose integers or scales aren't the model's, and why."""

    tensor: str
    node: str
    before: str
    after: str
    why: str


@dataclass(frozen=True)
class TableRow:
    """Nodes that became one table.

    `worst`: how many quanta interpolation may be off; 0 for a table of every input, None where no pass measured it.
    """

    nodes: tuple[str, ...]
    kind: str
    entries: int
    worst: int | None


@dataclass(frozen=True)
class SegmentRow:
    """One segment: how many steps it has, what it needs, and for the CPU why it is there."""

    name: str
    device: str
    steps: int
    reasons: tuple[str, ...] = ()
    macs: int = 0
    arena_bytes: int = 0
    constant_bytes: int = 0


@dataclass(frozen=True)
class StreamRow:
    """One segment's command stream: its commands, the on-chip memory that they take, bytes from and to DDR, and its
    time at the march's peak rates; `refused` says why a segment has none.
    """

    segment: str
    commands: int = 0
    on_chip_bytes: int = 0
    loaded_bytes: int = 0
    stored_bytes: int = 0
    peak_us: float = 0.0
    refused: str = ""
