"""An origin changes whenever code that builds or traces a model does; equal in other processes."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hgpart
from hgpart.operators import table
from hgpart.tracing.cache import origins
from hgpart.tracing.cache.origins import origin_of


@pytest.fixture(autouse=True)
def _of_files_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origins, "STARTED", math.inf)  # whoever writes files while tests run
    monkeypatch.setattr(table, "_users", {})  # rules that other tests and pages leave behind


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package in the place of pytorchcv."""
    folder = tmp_path / "pytorchcv"
    (folder / "models").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "models" / "one.py").write_text("width = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "pytorchcv"]:
        monkeypatch.delitem(sys.modules, name)
    return folder


def test_a_packages_files_count_wherever_it_lies(package: Path) -> None:
    """A checkout that is installed by `pip install -e` has the same version while it changes."""
    first, other = origin_of("pytorchcv:resnet10"), origin_of("vgg16")
    assert first is not None
    assert first.is_current()
    (package / "models" / "one.py").write_text("width = 2 * 1\n")
    second = origin_of("pytorchcv:resnet10")
    assert second != first
    assert not first.is_current()
    (package / "models" / "two.py").write_text("")
    assert origin_of("pytorchcv:resnet10") not in (first, second)
    assert origin_of("vgg16") == other


def test_files_that_this_process_may_have_read_before_tell_nothing(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = (package / "models" / "one.py").stat().st_mtime
    os.utime(package / "models" / "one.py", (written + 10**6, written + 10**6))
    monkeypatch.setattr(origins, "STARTED", written + 10**6 - 1)
    assert origin_of("pytorchcv:resnet10") is None
    assert origin_of("vgg16") is not None


def test_what_is_installed_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = origin_of("vgg16")
    (tmp_path / "scaling-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert origin_of("vgg16") != first


def test_variables_of_the_package_count(monkeypatch: pytest.MonkeyPatch) -> None:
    first, other = origin_of("timm:resnet18"), origin_of("vgg16")
    monkeypatch.setenv("TIMM_FUSED_ATTN", "0")
    assert origin_of("timm:resnet18") != first
    assert origin_of("vgg16") == other


def test_a_configuration_counts_by_its_content(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"image_size": 32}))
    first = origin_of(f"hf:{file}")
    file.write_text(json.dumps({"image_size": 64}))
    assert first is not None
    assert origin_of(f"hf:{file}") != first
    file.unlink()
    assert origin_of(f"hf:{file}") is None


@pytest.mark.parametrize("spec", ["net.py:make", "mine.models:make", "model.pt2", "a.py:b+split:2"])
def test_code_of_the_users_has_no_origin(spec: str) -> None:
    assert origin_of(spec) is None


def test_rules_of_the_users_are_in_no_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    assert origin_of("vgg16") is not None
    hgpart.channel_rule(torch.ops.aten.erfinv)(lambda call: None)
    assert origin_of("vgg16") is None


def test_another_process_finds_the_same_origin_without_torch() -> None:
    code = (
        "import sys\n"
        "from hgpart.tracing.cache.origins import origin_of\n"
        "print(origin_of('timm:resnet18').code, 'torch' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    here = origin_of("timm:resnet18")
    assert here is not None
    assert ended.stdout.split() == [here.code, "False"]
