"""How the tests run: `pytest` in minutes, `pytest -m full` with all models and many more examples.

CI runs full tests but for those that are also `long`; these are run before a release.

Each process of the runner computes in one thread, and so do the commands that tests start: the
machines that run the tests are shared, and busy at times. Hypothesis has no deadline for that
reason. A model of the zoo is traced once for all processes: what they keep lies in a folder of this
run's own, and the user's folder of caches is left alone. Ctrl-C arrives: a runner in the background
ignores it, and the commands would too. Garbage is looked for less often than Python does, as each
time it goes through all that torch holds; and not before the tests are collected, which would take
half as long again.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections import Counter, defaultdict

import pytest
from hypothesis import HealthCheck, settings

from hgpart.work import watching
from hgpart.work.watching import Spent

gc.disable()
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything imports torch
os.environ["HGPART_TRACES"] = "keep"
if "PYTEST_XDIST_WORKER" not in os.environ:  # the first process; the others inherit its folder
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="hgpart-tests-")

for name, examples in (("quick", 3), ("full", 8)):
    settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,
        derandomize="CI" in os.environ,  # elsewhere each run looks further
        suppress_health_check=[HealthCheck.too_slow],
    )
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process measures is disturbed by no other: tests run beside each other."""
    nothing = Spent("here", {0: (0.0, 0.0)}, 0.0, 0.0, 0.0)
    monkeypatch.setattr(watching, "spent_so_far", lambda: nothing)


def pytest_configure(config: pytest.Config) -> None:
    """Choose how many examples Hypothesis tries."""
    settings.load_profile("full" if _is_full(config) else "quick")


def pytest_unconfigure() -> None:
    """Remove the traces of this run."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(os.environ["XDG_CACHE_HOME"], ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the full tests, besides those that say that they are.

    These are cases behind the first `few` of a test; of a test with several parameters,
    combinations of which each value was in another one; and Hypothesis's tests, which run there
    again with more examples, those that are not full by themselves among the long ones.
    """
    tried: dict[object, set[tuple[str, int]]] = defaultdict(set)
    cases: Counter[object] = Counter()
    for item in items:
        test = item.path, getattr(item, "cls", None), getattr(item, "originalname", item.name)
        if (few := item.get_closest_marker("few")) is not None and not item.get_closest_marker(
            "full"
        ):
            cases[test] += 1
            if cases[test] > few.args[0]:
                item.add_marker("full")
        if (spec := getattr(item, "callspec", None)) is not None:
            values = {(name, id(value)) for name, value in spec.params.items()}
            of_test = tried[test]
            if len(values) > 1 and values <= of_test:
                item.add_marker("full")
            of_test |= values
        if _is_full(config) and hasattr(getattr(item, "obj", None), "hypothesis"):
            if not item.get_closest_marker("full"):
                item.add_marker("long")
            item.add_marker("full")


def pytest_collection_finish() -> None:
    """Look for garbage seldom, and not in what was imported."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def _is_full(config: pytest.Config) -> bool:
    return config.option.markexpr.startswith(("full", "long"))
