"""A traced graph says for which batch sizes its model does what it does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hgpart.tracing.traced_model import trace

CASES = {
    "any": (lambda x: x * 2, "2 or more"),
    "from five": (lambda x: x * 2 if x.shape[0] > 4 else x, "5 or more"),
    "between": (lambda x: x * 2 if 3 < x.shape[0] <= 9 else x, "4 to 9"),
    "but one": (lambda x: x if x.shape[0] == 5 else x * 2, "2 to 4, 6 or more"),
    "elements": (lambda x: x * 2 if x.numel() > 20 else x, "7 or more"),
    "multiples": (lambda x: x * 2 if x.shape[0] % 4 == 0 else x, "4, 8, 12 and so on"),
    "that alone": (lambda x: x * 2 if x.shape[0] == 8 else x, "8"),
    "a group": (lambda x: x.view(min(4, x.shape[0]), -1, 3).sum(0), "8"),
    "frames": (lambda x: x.view(x.shape[0] // 4, 4, 3).sum(1), "8"),  # divided by 0 below four
    "large groups": (lambda x: x.view(min(64, x.shape[0]), -1, 3) + 1, "8"),  # even up to 64
    "halves": (lambda x: torch.cat([half - half.mean(0) for half in x.chunk(2)]), "8"),
    "constant sizes": (lambda x: x[:, torch.tensor([True, False, True])] * 2, "2 or more"),
    "reciprocal": (lambda x: x * (1 / x.shape[0]), "8"),
    # refused: the inputs said still that their sizes may be any when eight were traced
    "not for any": (lambda x: x * divmod(x.shape[0], 3)[1], "8"),
    "quantising": (lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 255), "8"),
}


class Going(nn.Module):
    def __init__(self, by) -> None:
        super().__init__()
        self.by = by

    def forward(self, x):
        return self.by(x)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CASES)
def test_what_the_graph_does_the_model_does_for_its_sizes(name):
    """Conditions on the batch were dropped, and sizes asked for at 2, 3 and 7 samples alone."""
    by, said = CASES[name]
    traced = trace(Going(by), torch.zeros(8, 3))
    assert str(traced.batch_sizes) == said
    assert traced.has_dynamic_batch == (said != "8")
    assert 1 not in traced.batch_sizes  # which torch.export never looks at
    for samples in filter(traced.batch_sizes.__contains__, range(2, 14)):
        values = torch.randn(samples, 3)
        assert torch.equal(
            traced.graph_module(*traced.constants.values(), values)[0], by(values)
        ), samples
