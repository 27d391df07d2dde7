"""Which nodes can't be taken in whatever their operands: unknown operators, and nodes that break their definition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

import onnx
from onnx import NodeProto

from hbc.diagnostics import BadNode, FrontendError, NotTaken

from .onnx_dialects import HINTS, REFUSED
from .onnx_failures import Failures
from .onnx_model import STANDARD, VENDOR, Source, all_nodes, domain_of, label, subgraphs
from .onnx_ops import RULES
from .problem import listing, problem, quoted


def check_nodes(source: Source) -> Failures:
    """What is wrong with the nodes of `source`: one failure for all unknown operators, one for every broken node."""
    failures = Failures(source.file)
    inside = [(node, [n for n in all_nodes([node]) if not _is_known(n, source.versions)]) for node in source.nodes]
    unknown = [n for _, found in inside for n in found]
    if unknown:
        results = [o for node, found in inside if found for o in node.output]
        failures.add(_unknown(source, unknown), results)
    for node, found in inside:
        for failure in () if found else _broken(source, [node]):
            failures.add(failure, node.output)
    return failures


def _unknown(source: Source, unknown: Sequence[NodeProto]) -> FrontendError:
    """One FrontendError for all nodes that neither hbc nor ONNX Runtime can run."""
    kinds = Counter(f"{n.domain}.{n.op_type}" if n.domain else n.op_type for n in unknown)
    why = (
        "; ".join(f"{kind} (×{count})" for kind, count in sorted(kinds.items()))
        + ": no such operator in hbc or ONNX Runtime"
    )
    opset = source.stated or source.versions[""]
    for kind in kinds:
        versions = [s.since_version for s in _history() if s.domain == "" and s.name == kind]
        if versions:
            span = f"came with opset {min(versions)}" if min(versions) > opset else "was taken out again"
            why += f"; {kind} {span}, the model is written in opset {opset}"
    for reason in dict.fromkeys(REFUSED[n.op_type] for n in unknown if n.op_type in REFUSED):
        names = ", ".join(sorted({n.op_type for n in unknown if REFUSED.get(n.op_type) == reason}))
        why += f"; {names}: {reason}"
    hints = [HINTS[d] for d in sorted({n.domain for n in unknown}) if d in HINTS]
    return problem(
        f"operators that hbc doesn't know are used by {len(unknown)} of {len(source.nodes)} nodes",
        where=f"{source.file}: node {listing(quoted(label(n)) for n in unknown)}",
        why=why,
        hint="; ".join(hints) or "export without custom operators, or as model-local functions",
        kind=NotTaken,
    )


@lru_cache(maxsize=1)
def _history() -> list[onnx.defs.OpSchema]:
    return list(onnx.defs.get_all_schemas_with_history())


def _is_known(node: NodeProto, versions: Mapping[str, int]) -> bool:
    domain = domain_of(node)
    if domain == VENDOR:
        return True  # the vendor's rules name what they don't take
    if domain not in STANDARD:
        return (domain, node.op_type) in RULES
    return domain == "com.microsoft" or onnx.defs.has(node.op_type, versions.get(domain, 1), domain)


def _broken(source: Source, nodes: Iterable[NodeProto]) -> Iterator[FrontendError]:
    """Hold every standard node to ONNX's own schema: operand counts, attribute names and types.

    Of a node with subgraphs, only the nodes inside are checked: the checker knows no outer tensors.
    """
    context = onnx.checker.C.CheckerContext()
    context.ir_version = max(source.model.ir_version, 3)
    context.opset_imports = {k: v for k, v in source.versions.items() if k in STANDARD}
    for node in nodes:
        inner = list(subgraphs(node))
        for graph in inner:
            yield from _broken(source, graph.node)
        if inner or domain_of(node) not in {"", "ai.onnx.ml"}:
            continue
        try:
            onnx.checker.check_node(node, context)
        except (onnx.checker.ValidationError, RuntimeError, ValueError) as error:
            version = source.versions.get(domain_of(node))
            where = f"{source.file}: node {quoted(label(node))} ({node.op_type}, opset {version})"
            why = str(error).splitlines()[0]
            yield problem("the node breaks its operator's definition", where=where, why=why, kind=BadNode)
