"""Bytes of messages in memory: by hand, and as the post of a process has them."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from toy_programs import Cut, cuts

from hgpart.execution.outlines import outline
from hgpart.run.processes.map_types import MapTypes
from hgpart.run.processes.rank_messages import MessageSizes, RankMessages
from hgpart.schedules import make_schedule
from hgpart.schedules.costs import Costs
from hgpart.schedules.mail import mail
from hgpart.schedules.message_bytes import message_bytes
from hgpart.schedules.outline import Chunk, Outline, Sent
from hgpart.schedules.rules import RULES
from hgpart.schedules.schedule import Direction, Piece


def test_a_cut_by_hand() -> None:
    """A map of 100 bytes a sample goes on, its gradient comes back; two samples, then one."""
    first = Outline((Chunk((), (Sent(0, 1, 100),)),), (Chunk((0,), ()),))
    second = Outline((Chunk((0,), ()),), (Chunk((), (Sent(0, 0, 100),)),))
    made = make_schedule([first, second], "gpipe", 2, Costs())
    # Both gradients are waited for from the start; the first one says that both maps have come.
    assert message_bytes(made, 0, (2, 1)) == [(300, 500), (500, 600), (100, 100), (0, 0)]
    # The first map is kept for backward anyway.
    kept = message_bytes(made, 0, (2, 1), held={Piece(Direction.FORWARD, 0, 0)})
    assert kept == [(300, 300), (300, 400), (100, 100), (0, 0)]
    # Nothing tells the second part that a gradient has come.
    assert message_bytes(made, 1, (2, 1)) == [(100, 100), (0, 0), (0, 200), (200, 300)]


class Nowhere:
    """A connection over which nothing travels."""

    device, nccl = torch.device("cpu"), False

    def group(self, sender: int, receiver: int) -> None:
        return None

    def guard(self, call: object, *words: object) -> None:
        return None


@given(cuts(), st.sampled_from([*RULES, "async"]), st.integers(1, 3), st.integers(1, 3))
def test_it_is_what_a_post_holds(cut: Cut, rule: str, micro_batches: int, samples: int) -> None:
    outlines = [outline(cut.placed.programs[part], {}) for part in range(cut.k)]
    made = make_schedule(outlines, rule, micro_batches, Costs(message=1.0))
    sizes = [samples] * micro_batches
    for part in range(cut.k):
        transfers = cut.placed.programs[part].transfers
        types, own = MapTypes(transfers), mail(made, part)
        known = MessageSizes.of(own, types, sizes, None, {})
        post = RankMessages(Nowhere(), types, own, sizes, known)  # type: ignore[arg-type]
        found = message_bytes(made, part, sizes)
        for action, (during, after) in zip(made.sequences[part], found, strict=True):
            forward = action.direction is Direction.FORWARD
            kind = Direction.FORWARD if forward else Direction.BACKWARD
            chunk = made.chunk(action)
            if action.direction is not Direction.WEIGHTS:
                for number in chunk.awaits:
                    post.receive(Piece(kind, action.micro_batch, number))
            assert lying(post) == during
            if action.direction is not Direction.WEIGHTS:
                for number in (sent.transfer for sent in chunk.sends):
                    tensors = [
                        torch.zeros(one.shape(samples), dtype=one.dtype)
                        for one in transfers[number].tensors
                    ]
                    receiver = transfers[number].receiver
                    post.send(Piece(kind, action.micro_batch, number), receiver, tensors)
            assert lying(post) == after


def lying(post: RankMessages) -> int:
    """Bytes of all messages that a post has."""
    bodies = [body for body, _ in post._coming.values()]
    bodies += [piece for pieces in post._arrived.values() for piece in pieces]
    bodies += [body for body, _ in post._going.values()]
    return sum(body.nbytes for body in bodies)
