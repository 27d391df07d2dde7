"""What code generation does to the process around it ends with it."""

from __future__ import annotations

import gc

import pytest

from hbc_runtime.jit import assembly
from hbc_runtime.jit.host import host
from hbc_runtime.jit.memory import many_objects
from tests.unit.runtime.test_aot import clamp


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(enabled: bool) -> None:
    try:
        gc.enable() if enabled else gc.disable()
        with many_objects():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
        with pytest.raises(RuntimeError), many_objects():
            raise RuntimeError
        assert gc.isenabled() == enabled
        assembly.assemble(clamp(), host())
        assert gc.isenabled() == enabled
    finally:
        gc.enable()
