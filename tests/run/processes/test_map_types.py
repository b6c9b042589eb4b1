"""Maps in other types than were placed: what a message says, and what both ends then know."""

from __future__ import annotations

import pytest
import torch

from hgpart.errors import RunError
from hgpart.execution.program import Transfer, TransferredTensor
from hgpart.run.processes.map_types import MapTypes

FLOATS = TransferredTensor((1, 0), (0, 3), torch.float32)
FLAGS = TransferredTensor((1,), (0,), torch.bool)
TRANSFERS = {
    0: Transfer(0, "conv", False, 0, 1, (FLOATS, FLAGS), True),
    1: Transfer(1, "head", False, 0, 1, (FLOATS,), True),
}
SAMPLES = 5


def sent(sender, receiver, number, tensors):
    """Send tensors; return what arrives and the bytes that it takes."""
    says = not sender.are_known
    assert says is not receiver.are_known
    body = torch.cat(sender.packed(number, SAMPLES, tensors, says))
    assert len(body) == receiver.nbytes(number, SAMPLES, says)
    sender.note(number, tensors)
    arrived = receiver.unpacked(number, SAMPLES, body, says)
    receiver.note(number, arrived)
    for before, after in zip(tensors, arrived, strict=True):
        assert before.dtype == after.dtype
        assert torch.equal(before, after)
    return len(body)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_types_are_said_once_and_known_by_both(dtype):
    ends = [MapTypes(TRANSFERS, are_known=False) for _ in range(2)]
    maps, flags = torch.randn(SAMPLES, 3).to(dtype), torch.rand(SAMPLES) > 0.5
    assert sent(*ends, 0, [maps, flags]) > maps.nbytes + flags.nbytes
    assert not ends[0].are_known  # there is another transfer
    sent(*ends, 1, [maps])
    assert all(end.are_known for end in ends)
    assert sent(*ends, 0, [maps, flags]) == maps.nbytes + flags.nbytes
    assert sent(*ends, 1, [maps]) == maps.nbytes


def test_what_was_not_agreed_on_is_refused():
    known = MapTypes(TRANSFERS)
    with pytest.raises(RunError, match="head sends 30 bytes, accepted is 60"):
        known.packed(1, SAMPLES, [torch.zeros(SAMPLES, 3).half()], says_types=False)
    with pytest.raises(
        RunError, match=r"head sends \(4, 3\) of torch.float16, accepted is \(5, 3\)"
    ):
        known.packed(1, SAMPLES, [torch.zeros(4, 3).half()], says_types=True)
