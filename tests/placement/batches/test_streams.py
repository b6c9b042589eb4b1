"""Losses of a stream: each batch's once, in their order, when all parts have told theirs."""

from __future__ import annotations

import torch

from hgpart.placement.batches.streams import StreamedLosses, sum_of_parts


def test_a_loss_is_told_when_all_parts_have_some_of_it_whichever_is_ahead():
    told = []
    losses = StreamedLosses([2, 0, 2], told.append)
    for part, value in ((0, 1.0), (0, 10.0), (1, None), (2, 0.5), (2, 0.25)):
        losses.tell(part, None if value is None else torch.tensor(value))
        assert losses.told == told
    assert [float(loss) for loss in told] == [1.5, 10.25]


def test_a_loss_of_several_parts_is_added_up_as_numbers_are():
    parts = [torch.tensor(value) for value in (1.0, 2.0**-24, 2.0**-24)]  # in float32 these vanish
    assert float(sum_of_parts(parts)) == 1 + 2.0**-23
    assert sum_of_parts(parts[:1]) is parts[0]
