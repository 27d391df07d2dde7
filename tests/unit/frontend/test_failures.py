"""Everything that keeps a model from being taken in is told at once."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from hbc.diagnostics import BadNode, EmitError, FrontendError, NotTaken, SeveralNodes, error
from hbc.diagnostics.several import SHOWN, parts, together
from hbc.frontend import load

from .net import UNDEFINED, Net, floats

F32, I8 = np.float32, np.int8


def refusal(net: Net) -> str:
    with pytest.raises(FrontendError) as raised:
        load(net.model())
    return str(raised.value)


def wrong_reshape(net: Net, x: str, out: str) -> str:
    return net.op("Reshape", x, net.const(np.int64([7])), out=out)


def test_every_failed_node_is_listed_with_its_reason_and_what_to_try() -> None:
    net = Net(17)
    x = net.input("x", [2, 3])
    wrong_reshape(net, x, "a")
    net.q(x, np.nan, I8(0), out="b")
    net.op("Transpose", x, out="c", perm=[0, 0])
    net.output("a", "c")
    net.output("b", dtype=I8)
    text = refusal(net)
    assert text.startswith("3 problems")
    for part in ("Reshape_0", "6 elements don't fit", "QuantizeLinear_1", "holds nan", "calibrate", "Transpose_2"):
        assert part in text


def test_one_failure_is_told_as_ever() -> None:
    net = Net(17)
    wrong_reshape(net, net.input("x", [2, 3]), "a")
    net.output("a")
    assert refusal(net).startswith("can't reshape [2, 3] to [7]\n  --> <net>: node 'Reshape_0' (Reshape, opset 17)")


def test_what_reads_a_failed_result_is_not_blamed() -> None:
    net = Net(17)
    a = wrong_reshape(net, net.input("x", [2, 3]), "a")
    b = net.op("Relu", a)
    net.op("Add", b, b, out="y")
    net.op("NonZero", b, out="z")
    net.output("y")
    net.output("z", dtype=np.int64)
    text = refusal(net)
    assert "Reshape_0" in text
    assert "Relu" not in text
    assert "NonZero" not in text


def test_unknown_broken_and_failing_nodes_come_together() -> None:
    net = Net(17, my_domain=1)
    x = net.input("x", [2, 3])
    net.op("Fancy", x, out="a", domain="my.domain")
    net.op("Fancier", net.op("Fancy", x, domain="my.domain"), out="b", domain="my.domain")
    net.op("Relu", x, out="c", wrong=1)
    wrong_reshape(net, x, "d")
    net.output("a", "b", "c", "d")
    text = refusal(net)
    assert text.startswith("3 problems")
    for part in ("my.domain.Fancy (×2)", "my.domain.Fancier (×1)", "Relu_3", "wrong", "Reshape_4"):
        assert part in text


def test_open_sizes_do_not_hide_unknown_operators() -> None:
    net = Net(17, my_domain=1)
    net.op("Fancy", net.input("x", ["N", 3]), out="a", domain="my.domain")
    net.output("a")
    text = refusal(net)
    assert "my.domain.Fancy" in text
    assert "--shape x=1x3" in text


def test_all_inputs_of_no_type_are_listed() -> None:
    net = Net(17)
    net.op("Concat", net.input("x", [2], UNDEFINED), net.input("s", [2], onnx.TensorProto.STRING), out="y", axis=0)
    net.output("y")
    text = refusal(net)
    assert text.startswith("2 inputs")
    assert "input 'x'" in text
    assert "input 's': element type STRING" in text
    assert "numbers only" in text


def test_wrong_outputs_are_listed() -> None:
    net = Net(17)
    x = net.input("x", [2])
    net.op("Relu", x, out="a")
    net.op("Abs", x, out="b")
    net.output("a", "b", dtype=np.int64)
    text = refusal(net)
    assert "output 'a'" in text
    assert "output 'b'" in text


def test_failures_inside_a_taken_branch_are_listed() -> None:
    inner = Net(17)
    wrong_reshape(inner, "x", "i")
    inner.op("Transpose", "x", out="j", perm=[0, 0])
    inner.op("Concat", "i", "j", out="k", axis=0)
    inner.outputs.append(onnx.helper.make_tensor_value_info("k", 1, None))
    net = Net(17)
    net.input("x", [2, 3])
    graph = inner.model().graph
    net.op("If", net.const(np.True_), out="y", then_branch=graph, else_branch=graph)
    net.op("Relu", "y", out="z")
    net.output("z")
    text = refusal(net)
    assert text.startswith("2 problems")
    assert "Reshape_0" in text
    assert "Transpose_1" in text


def test_many_failures_are_counted() -> None:
    net = Net(17)
    x = net.input("x", [2, 3])
    for i in range(30):
        wrong_reshape(net, x, f"y{i}")
        net.output(f"y{i}")
    text = refusal(net)
    assert text.startswith("30 problems")
    assert text.count("can't reshape") == SHOWN
    assert "and 10 more" in text


def test_joining_errors() -> None:
    a, b = (error(EmitError, f"{x} is wrong", where=f"m.onnx: node '{x}'", why="so", kind=BadNode) for x in "ab")
    assert together([a], "{} wrong", where="m.onnx", kind=SeveralNodes) is a
    assert together([a, a], "{} wrong", where="m.onnx", kind=SeveralNodes) is a
    both = together([a, b], "{} wrong", where="m.onnx", kind=SeveralNodes)
    assert isinstance(both, EmitError)
    assert parts(both) == (a, b)
    assert both.diagnostic.why == "node 'a': a is wrong: so\nnode 'b': b is wrong: so"
    assert str(both).startswith("2 wrong\n  --> m.onnx\n   = why:  node 'a'")
    c = error(EmitError, "c is wrong", where="m.onnx: node 'c'", hint="mend it", kind=NotTaken)
    three = together([both, c], "{} wrong", where="m.onnx", kind=SeveralNodes)
    assert three.diagnostic.title == "3 wrong"
    assert three.diagnostic.why.splitlines()[-1] == "node 'c': c is wrong; try: mend it"


def test_a_form_that_a_rule_refuses_is_called_with_the_reason() -> None:
    """A cast to bool of what the rule has no form for, say: here one made for the test."""
    from hbc.frontend import onnx_import
    from hbc.ir.ops import Call

    def picky(n: object) -> object:
        raise n.fail("this form isn't taken", why="it is odd", hint="export it otherwise", kind=NotTaken)  # type: ignore[attr-defined]

    net = Net(17)
    net.op("Elu", net.input("x", [2]), out="y")
    net.output("y")
    rules = {**onnx_import.RULES, ("", "Elu"): picky}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_import, "RULES", rules)
        (call,) = load(net.model()).graph.walk(Call)
    assert (call.op_type, call.reason, call.hint) == ("Elu", "this form isn't taken: it is odd", "export it otherwise")
    assert floats(0, 2).shape == call.results[0].type.shape
