"""`__all__` is what is public, and the names that users build on stay."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import types

import pytest

import hbc
import hbc_runtime

PACKAGES = ("hbc", "hbc_runtime")


def defined_names(package: types.ModuleType) -> set[str]:
    """Names without an underscore that `package` shows and that were defined somewhere inside it; not its modules."""
    prefix = package.__name__
    names = set()
    for name in dir(package):
        value = getattr(package, name)
        home = getattr(value, "__module__", "")
        if not name.startswith("_") and not isinstance(value, types.ModuleType) and home.split(".")[0] == prefix:
            names.add(name)
    return names


def public_modules() -> list[str]:
    """Every module of both packages that says `__all__`."""
    found = []
    for name in PACKAGES:
        package = importlib.import_module(name)
        walked = pkgutil.walk_packages(package.__path__, f"{name}.")
        found += [m.name for m in walked if not m.name.endswith("__main__")]
    return found


@pytest.mark.parametrize("name", PACKAGES)
def test_all_is_what_is_public(name: str) -> None:
    package = importlib.import_module(name)
    for public in package.__all__:  # resolves what loads on first use, which `dir` need not show before
        assert getattr(package, public) is not None
    assert defined_names(package) - set(package.__all__) == set()


@pytest.mark.parametrize("name", PACKAGES)
def test_all_is_sorted_and_has_no_doubles(name: str) -> None:
    listed = importlib.import_module(name).__all__
    assert list(listed) == sorted(set(listed))


@pytest.mark.parametrize("name", PACKAGES)
def test_star_import_gives_all(name: str) -> None:
    namespace: dict[str, object] = {}
    exec(f"from {name} import *", namespace)
    assert set(importlib.import_module(name).__all__) <= set(namespace)


@pytest.mark.parametrize("name", PACKAGES)
def test_unknown_name_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match="nonesuch"):
        importlib.import_module(name).nonesuch  # noqa: B018 - looking it up is the test


@pytest.mark.parametrize("name", public_modules())
def test_every_listed_name_exists(name: str) -> None:
    module = importlib.import_module(name)
    missing = [n for n in getattr(module, "__all__", ()) if not hasattr(module, n)]
    assert missing == []


def test_the_compiler_offers_what_it_promises() -> None:
    parameters = inspect.signature(hbc.compile).parameters
    assert list(parameters)[1:3] == ["march", "arith"]
    assert (parameters["march"].default, parameters["arith"].default) == ("nash", "bpu")
    assert list(inspect.signature(hbc.parse).parameters) == ["text"]
    assert {"program", "report", "save"} <= {*dir(hbc.Compiled), *hbc.Compiled.__dataclass_fields__}


def test_the_runtime_offers_what_it_promises() -> None:
    parameters = inspect.signature(hbc_runtime.Session).parameters
    assert (parameters["threads"].default, parameters["engine"].default) == (1, "jit")
    assert {"inputs", "outputs", "run"} <= set(dir(hbc_runtime.Session))
    assert issubclass(hbc_runtime.HbmFormatError, hbc_runtime.HbmError)
    assert callable(hbc_runtime.load)


def test_both_packages_have_one_version() -> None:
    assert hbc.__version__ == hbc_runtime.__version__
