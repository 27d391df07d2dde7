"""A float node test as a quantised model: Q/DQ on its activations, weights and results, so that it can run in integers.

The reference is ONNX Runtime, unoptimised, on the very same model: what is compared is the integers behind the last
QuantizeLinear, in quanta.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, defs, helper, numpy_helper

import hbc
from hbc.diagnostics import HbcError
from hbc_runtime import Session
from hbc_runtime.errors import HbmError

from .cases import PROMISED, NodeCase, is_plain
from .judge import FAILED, PASSED, REFUSED, Verdict, reason_of, run_onnxruntime

OPSETS = (13, 18, 20, 21, 22, 23)  # Q/DQ as they are written today, up to what ONNX Runtime has whole
CONSTANT = {  # operands that are weights in any network; all other floats are computed
    "Conv": (1, 2), "ConvTranspose": (1, 2), "Gemm": (1, 2), "BatchNormalization": (1, 2, 3, 4), "PRelu": (1,),
    "LayerNormalization": (1, 2), "GroupNormalization": (1, 2), "InstanceNormalization": (1, 2),
    "RMSNormalization": (1,), "LSTM": (1, 2, 3, 5, 6, 7), "GRU": (1, 2, 3, 5), "Resize": (1, 2), "Upsample": (1,),
    "Pad": (2,), "Clip": (1, 2), "Dropout": (1,),
}  # fmt: skip
WEIGHTS = ("Conv", "ConvTranspose", "Gemm")  # whose operand 1 is quantised too

NOT_RUN = "ONNX Runtime does not run it"

# Quanta that an op may be off in the BPU's arithmetic beyond the usual 1, with the reason.
LOOSER: dict[str, tuple[int, str]] = {
    "GridSample": (2, "it rounds in its operand's scale (D10), which is up to three of the result's here"),
}


@dataclass(frozen=True)
class Wrapped:
    """A quantised model, what to feed it, and the quantum of each output."""

    model: ModelProto
    feeds: dict[str, np.ndarray]
    quanta: dict[str, float]


def wrap(case: NodeCase) -> Wrapped | str:
    """The quantised form of a test with one node and finite float32 data; else why there is none."""
    if len(case.model.graph.node) != 1 or case.model.functions:
        return "more than one node"
    node = case.model.graph.node[0]
    inputs, outputs = case.data[0]
    if node.domain or node.op_type not in PROMISED or any(True for a in node.attribute if a.HasField("g")):
        return "not one of the promised operators"
    if not all(is_plain(v) for v in (*inputs.values(), *outputs.values())):
        return "data of a type that NumPy has not"
    reals = [v for v in (*inputs.values(), *outputs.values()) if v.dtype.kind == "f"]
    if any(v.dtype != np.float32 for v in reals) or not any(v.dtype == np.float32 for v in outputs.values()):
        return "no float32 results, or floats of another width"
    if not all(np.isfinite(v).all() and v.size for v in reals):
        return "infinite, undefined or no data"
    if not any(i.dtype == np.float32 and inputs_index(node, k) not in CONSTANT.get(node.op_type, ())
               for k, i in inputs.items()):  # fmt: skip
        return "no computed float32 operand"
    return _Wrapping(node, case).build()


def inputs_index(node: NodeProto, name: str) -> int:
    """The operand's position."""
    return list(node.input).index(name)


class _Wrapping:
    def __init__(self, node: NodeProto, case: NodeCase) -> None:
        self.node = NodeProto()
        self.node.CopyFrom(node)
        self.node.name = self.node.name or case.name
        self.case = case
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.feeds: dict[str, np.ndarray] = {}

    def build(self) -> Wrapped:
        """Operands, the node itself, results."""
        inputs, outputs = self.case.data[0]
        constant = CONSTANT.get(self.node.op_type, ())
        for name, value in inputs.items():
            index = inputs_index(self.node, name)
            if value.dtype == np.float32 and index not in constant:
                self.feeds[name] = value
                self.node.input[index] = self.fake_quantised(name, value)
            elif value.dtype == np.bool_:
                self.feeds[name] = value
            else:
                self.constant(name, value)
                if self.node.op_type in WEIGHTS and index == 1:
                    self.node.input[index] = self.fake_quantised(name, value)
        self.nodes.append(self.node)
        results, quanta = [], {}
        for i, (name, value) in enumerate(outputs.items()):
            position = list(self.node.output).index(name)
            if value.dtype == np.float32:
                self.node.output[position] = f"raw{i}"
                results.append(self.fake_quantised(f"raw{i}", value))
                quanta[results[-1]] = scale_of(value)
            else:
                results.append(name)
                quanta[name] = 1.0
        return Wrapped(self.model(results, outputs), self.feeds, quanta)

    def model(self, results: list[str], outputs: dict[str, np.ndarray]) -> ModelProto:
        types = [helper.np_dtype_to_tensor_dtype(v.dtype) for v in outputs.values()]
        graph = helper.make_graph(
            self.nodes,
            self.case.name,
            [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
             for n, v in self.feeds.items()],
            [helper.make_tensor_value_info(n, t, None) for n, t in zip(results, types, strict=True)],
            self.initializers,
        )  # fmt: skip
        opset = self.opset()
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
        model.ir_version = 8 if opset < 20 else 10
        return model

    def opset(self) -> int:
        """The oldest usual opset that has the operator with these attributes and as many operands: ONNX Runtime's."""
        own = max(o.version for o in self.case.model.opset_import if o.domain in {"", "ai.onnx"})
        given = {a.name for a in self.node.attribute}
        meant = defs.get_schema(self.node.op_type, own, "")
        for version in (v for v in OPSETS if v <= own):
            schema = defs.get_schema(self.node.op_type, version, "") if _exists(self.node.op_type, version) else None
            if schema is None or not given <= set(schema.attributes) or len(self.node.input) > schema.max_input:
                continue
            if _defaults(schema) == _defaults(meant) or version >= meant.since_version:
                return version
        return own

    def constant(self, name: str, value: np.ndarray) -> None:
        self.initializers.append(numpy_helper.from_array(np.asarray(value), name))

    def fake_quantised(self, name: str, value: np.ndarray) -> str:
        """`name` through Q and DQ, int8, symmetric, of its own range."""
        scale, zero = f"{name}:scale", f"{name}:zero"
        self.constant(scale, np.float32(scale_of(value)))
        self.constant(zero, np.int8(0))
        self.nodes.append(helper.make_node("QuantizeLinear", [name, scale, zero], [f"{name}:q"], name=f"{name}:Q"))
        dq = helper.make_node("DequantizeLinear", [f"{name}:q", scale, zero], [f"{name}:dq"], name=f"{name}:DQ")
        self.nodes.append(dq)
        return f"{name}:dq"


def scale_of(value: np.ndarray) -> float:
    """absmax / 127 as float32; 1 for zeros."""
    largest = float(np.abs(value).max(initial=0.0))
    return float(np.float32(largest / 127)) if largest > 0 else 1.0


def judge_wrapped(case: NodeCase, arith: str, engine: str = "jit") -> Verdict | None:
    """The wrapped test through hbc against ONNX Runtime; None where the test has no quantised form."""
    made = wrap(case)
    if isinstance(made, str):
        return None
    try:
        want = run_onnxruntime(made.model, made.feeds)
    except Exception as error:  # noqa: BLE001 - ONNX Runtime's exceptions have no common base of their own
        return Verdict(case.name, REFUSED, why=f"{NOT_RUN}: {' '.join(str(error).split())[:100]}")
    try:
        compiled = hbc.compile(made.model, march="nash-e", arith=arith)
        with Session(compiled.program, engine=engine) as session:
            got = session.run(made.feeds)
    except HbcError as error:
        return Verdict(case.name, REFUSED, why=reason_of(error))
    except HbmError as error:
        return Verdict(case.name, FAILED, why=str(error))
    op = made.model.graph.node[-1 if len(made.model.graph.node) == 1 else _position(made, case)].name
    devices = [r.device for r in compiled.report.nodes if r.node == op]
    how = "cpu" if "cpu" in devices else "bpu"
    worst = max(_quanta(got[n], want[n], q) for n, q in made.quanta.items())
    allowed = allowance(case, arith)
    outcome = PASSED if worst <= allowed else FAILED
    return Verdict(case.name, outcome, how, f"{worst:g} quanta")


def _position(made: Wrapped, case: NodeCase) -> int:
    kind = case.model.graph.node[0].op_type
    found = [i for i, n in enumerate(made.model.graph.node) if n.op_type == kind and ":" not in n.name]
    return found[0] if found else 0


def allowance(case: NodeCase, arith: str) -> int:
    """How many quanta the test's operator may be off."""
    op = case.model.graph.node[0].op_type
    return LOOSER[op][0] if arith == "bpu" and op in LOOSER else 1


def _quanta(got: np.ndarray, want: np.ndarray, quantum: float) -> float:
    if got.shape != want.shape or got.dtype != want.dtype:
        return float("inf")
    if got.dtype == np.bool_:
        return float(np.count_nonzero(got != want))
    return float(np.round(np.abs(got.astype(np.float64) - want.astype(np.float64)).max(initial=0.0) / quantum, 3))


def _defaults(schema: defs.OpSchema) -> dict[str, bytes]:
    """Every attribute with its default: GridSample's `bilinear` became `linear`."""
    return {name: a.default_value.SerializeToString() for name, a in schema.attributes.items()}


def _exists(op_type: str, version: int) -> bool:
    return bool(defs.has(op_type, version, ""))
