"""The examples in hgpart's docstrings do what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from importlib.util import find_spec

import pytest

import hgpart

MODULES = [
    module.name
    for module in pkgutil.walk_packages(hgpart.__path__, "hgpart.")
    if not module.name.endswith("__main__")  # importing it runs the command line
    and ">>>" in (find_spec(module.name).loader.get_source(module.name) or "")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    failures, _ = doctest.testmod(importlib.import_module(name), exclude_empty=True)
    assert failures == 0
