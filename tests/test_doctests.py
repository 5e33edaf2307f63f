"""Every example in a docstring runs, and says what it prints."""

import doctest
import importlib
import pkgutil

import pytest

import nanoeuler

MODULES = sorted(
    m.name for m in pkgutil.walk_packages(nanoeuler.__path__, "nanoeuler.") if not m.name.endswith("__main__")
)


@pytest.mark.parametrize("name", ["nanoeuler", *MODULES])
def test_examples(name, tmp_path, monkeypatch):
    if name.startswith("nanoeuler.ops.gpu.") and not name.startswith("nanoeuler.ops.gpu.runtime"):
        pytest.importorskip("triton")
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def test_the_public_names_have_examples():
    finder = doctest.DocTestFinder()
    for name in nanoeuler.__all__:
        thing = getattr(nanoeuler, name)
        if name != "UserError":
            assert any(test.examples for test in finder.find(thing, name)), f"{name} has no example"
