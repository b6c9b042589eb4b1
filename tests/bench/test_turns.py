"""Turns of ways, whatever becomes of one."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

from hgpart.bench.row_files import NotRun
from hgpart.bench.turns import attempted
from hgpart.bench.ways.way import way_of


def test_a_way_for_which_the_machine_has_no_room_is_that_ways_affair() -> None:
    def run(layout: Any) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    subject: Any = SimpleNamespace(check=lambda way: None)
    job: Any = SimpleNamespace(workers=2, batch_size=4)
    row = attempted(way_of("ddp"), subject, job, {"ddp": None}, run)
    assert isinstance(row, NotRun)
    assert row.failed
    assert row.why.endswith("Resource temporarily unavailable")
