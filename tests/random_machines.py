"""Random machines: measured, and written by hand."""

from __future__ import annotations

from hypothesis import strategies as st

from hgpart.machines.machine import AllReduce, Device, Link, Machine, Slowdown, SlowerMemory

factors = st.floats(1, 9)


@st.composite
def times(draw: st.DrawFn, count: int) -> tuple[float, ...]:
    steps = draw(st.lists(st.floats(1e-5, 1.0), min_size=count, max_size=count))
    return tuple(sum(steps[: at + 1]) for at in range(count))


@st.composite
def links(draw: st.DrawFn) -> Link:
    sizes = sorted(draw(st.sets(st.integers(0, 2**40), min_size=2, max_size=9)))
    return Link(tuple(sizes), draw(times(len(sizes))), draw(times(len(sizes))))


@st.composite
def slowdowns(draw: st.DrawFn) -> Slowdown:
    return Slowdown((1.0, *draw(st.lists(factors, max_size=3))))


devices = st.builds(
    Device,
    st.text('ab "é', max_size=3),
    st.none() | st.integers(1, 2**50),
    st.integers(1, 64),
    st.floats(1e-6, 1e6),
    st.none() | st.builds(SlowerMemory, st.floats(1, 1e18), st.none() | st.integers(1, 2**50)),
)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    nodes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    k = sum(nodes)
    ranks = st.tuples(st.integers(0, k - 1), st.integers(0, k - 1)).filter(
        lambda two: len({*two}) > 1
    )
    pairs = draw(st.dictionaries(ranks, links(), max_size=3)) if k > 1 else {}
    slowdown = draw(slowdowns())
    reduced = draw(links())
    return Machine(
        name=draw(st.text("ab:", max_size=5)),
        devices=tuple(draw(st.lists(devices, min_size=k, max_size=k))),
        nodes=tuple(nodes),
        inside=draw(links()),
        between=draw(links()) if len(nodes) > 1 else None,
        pairs=pairs,
        all_reduce=draw(st.none() | st.just(AllReduce(reduced.sizes, reduced.seconds))),
        together=slowdown.together,
        memory_bound=draw(st.none() | slowdowns()),
        handling=draw(st.floats(0, 1e-6)),
        stall=draw(st.floats(0, 1e-2)),
        note=draw(st.text(max_size=5)),
    )
