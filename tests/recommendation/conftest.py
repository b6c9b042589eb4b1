"""Devices of kilobytes: models in these tests are small."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hgpart.recommendation import memory


@pytest.fixture(autouse=True, scope="module")
def tensors_alone() -> Iterator[None]:
    """Count tensors alone: what a process takes besides is more than all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "process_bytes", lambda placement, part: 0)
        yield
