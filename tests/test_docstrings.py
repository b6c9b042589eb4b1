"""The examples in hgpart's docstrings do what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import hgpart

MODULES = [
    module.name
    for module in pkgutil.walk_packages(hgpart.__path__, "hgpart.")
    if not module.name.endswith("__main__")  # importing it runs the command line
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    failures, _ = doctest.testmod(importlib.import_module(name))
    assert failures == 0
