"""What stays with a process, in one of its own: the settings can't be taken back."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from hgpart.freed_memory import give_back_freed_memory

FAULTS = """
import resource, sys
from hgpart.freed_memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

bytearray(2**26)  # made once
before = faults()
for _ in range(20):
    bytearray(2**26)
print(faults() - before)
"""


def pages(how: str, **settings: str) -> int:
    """That the system made anew for 20 blocks of 64 MB, one after the other."""
    found = subprocess.run(
        [sys.executable, "-c", FAULTS, how],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **settings},
    )
    return int(found.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc's allocator")
def test_freed_memory_is_handed_out_again() -> None:
    assert pages("keep", MALLOC_ARENA_MAX="2") < 1000  # of 327,680


def test_giving_back_frees_nothing_that_is_used() -> None:
    kept = bytearray(range(256)) * 4096
    give_back_freed_memory()
    assert kept == bytearray(range(256)) * 4096
