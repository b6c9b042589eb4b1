"""Random blocks of a transformer, written in the ways that models write attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

FEATURES, TOKENS, WINDOW = 5, 6, 3


def repeated(shared: Tensor, count: int) -> Tensor:
    """Keys or values of heads that share them, for each head."""
    samples, heads, *rest = shared.shape
    return shared[:, :, None].expand(-1, -1, count, -1, -1).reshape(samples, heads * count, *rest)


@dataclass(frozen=True)
class Attention:
    """How a block attends.

    Attributes
    ----------
    heads, width : int
        Heads, and features of each.
    sharing : int
        Heads that share keys and values.
    products : str
        "fused", "matmul" (heads are a dimension), "einsum" or "bmm" (heads beside samples in one).
    projection : str
        Queries, keys and values by one linear layer, whose features are divided first by these
        three ("split") or by head ("mixed"), or by three layers ("apart").
    mask : str
        "", "causal", "chosen" (true or false), "added" (a buffer), "learned" (a parameter for each
        head) or "table" (a parameter that places read by an index).
    in_windows : bool
        Whether tokens attend within windows, which lie beside samples.
    dropout : float
    """

    heads: int = 4
    width: int = 3
    sharing: int = 1
    products: str = "fused"
    projection: str = "split"
    mask: str = ""
    in_windows: bool = False
    dropout: float = 0.0

    @property
    def features(self) -> int:
        """Features of all heads."""
        return self.heads * self.width


@st.composite
def attentions(draw: st.DrawFn) -> Attention:
    """Any way to attend."""
    heads = draw(st.sampled_from([1, 2, 3, 4, 6]))
    return Attention(
        heads=heads,
        width=draw(st.integers(1 if heads > 1 else 2, 4)),  # the norm of one feature is zero
        sharing=draw(st.sampled_from([one for one in range(1, heads + 1) if not heads % one])),
        products=draw(st.sampled_from(["fused", "matmul", "einsum", "bmm"])),
        projection=draw(st.sampled_from(["split", "mixed", "apart"])),
        mask=draw(st.sampled_from(["", "causal", "chosen", "added", "learned", "table"])),
        in_windows=draw(st.booleans()),
        dropout=draw(st.sampled_from([0.0, 0.3])),
    )


class AttentionBlock(nn.Module):
    """A layer norm, an attention, a residual add, and a head."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention
        features, shared = attention.features, attention.features // attention.sharing
        tokens = WINDOW if attention.in_windows else TOKENS
        self.embed, self.norm = nn.Linear(FEATURES, features), nn.LayerNorm(features)
        if attention.projection == "apart":
            self.query, self.key, self.value = (
                nn.Linear(features, own) for own in (features, shared, shared)
            )
        else:
            self.joint = nn.Linear(features, features + 2 * shared)
        self.project, self.head = nn.Linear(features, features), nn.Linear(features, 3)
        chosen = torch.rand(tokens, tokens) < 0.6
        self.register_buffer("chosen", chosen | torch.eye(tokens, dtype=torch.bool))
        self.register_buffer("added", torch.randn(tokens, tokens))
        self.register_buffer("places", torch.randint(7, (tokens * tokens,)))
        if attention.mask == "learned":
            self.learned = nn.Parameter(torch.randn(attention.heads, tokens, tokens))
        if attention.mask == "table":
            self.table = nn.Parameter(torch.randn(7, attention.heads))

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of each token."""
        maps = self.embed(tokens)
        read = self.norm(maps)
        if self.attention.in_windows:
            read = read.reshape(-1, WINDOW, read.shape[-1])
        made = self._attend(*self._of_heads(read)).transpose(1, 2).reshape(read.shape)
        scores: Tensor = self.head(maps + self.project(made).reshape(maps.shape))
        return scores

    def _of_heads(self, tokens: Tensor) -> list[Tensor]:
        """Queries, keys and values, each of shape (samples, heads, tokens, width)."""
        own, (samples, count) = self.attention, tokens.shape[:2]
        heads, shared = own.heads, own.heads // own.sharing
        if own.projection == "apart":
            each = [self.query(tokens), self.key(tokens), self.value(tokens)]
        elif own.projection == "split":
            each = list(
                self.joint(tokens).split([c * own.width for c in (heads, shared, shared)], 2)
            )
        else:  # each key comes with its value and with the queries that share it
            groups = self.joint(tokens).reshape(samples, count, shared, own.sharing + 2, own.width)
            query, key, value = groups.split([own.sharing, 1, 1], 3)
            each = [query.flatten(2, 4), key.flatten(2, 4), value.flatten(2, 4)]
        return [one.reshape(samples, count, -1, own.width).transpose(1, 2) for one in each]

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        own, count = self.attention, query.shape[2]
        dropout = own.dropout if self.training else 0.0
        mask = self._mask(count)
        if own.products == "fused":
            return functional.scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=None if own.mask == "causal" else mask,
                is_causal=own.mask == "causal",
                dropout_p=dropout,
                enable_gqa=own.sharing > 1,
            )
        if own.sharing > 1:
            key, value = (repeated(one, own.sharing) for one in (key, value))
        query = query * own.width**-0.5
        if own.products == "matmul":
            weights = query @ key.transpose(2, 3)
        elif own.products == "einsum":
            weights = torch.einsum("bhid,bhjd->bhij", query, key)
        else:
            query, key, value = (one.reshape(-1, count, own.width) for one in (query, key, value))
            if own.mask == "added":
                weights = torch.baddbmm(self.added, query, key.transpose(1, 2))
            else:
                weights = torch.bmm(query, key.transpose(1, 2))
            weights = weights.view(-1, own.heads, count, count)
        if mask is not None and mask.dtype == torch.bool:
            weights = weights.masked_fill(~mask, float("-inf"))
        elif mask is not None and not (own.products == "bmm" and own.mask == "added"):
            weights = weights + mask
        weights = functional.dropout(weights.softmax(3), dropout, self.training)
        if own.products == "matmul":
            return weights @ value
        if own.products == "einsum":
            return torch.einsum("bhij,bhjd->bhid", weights, value)
        return torch.bmm(weights.view(-1, count, count), value).view(
            -1, own.heads, count, own.width
        )

    def _mask(self, count: int) -> Tensor | None:
        kind = self.attention.mask
        if kind == "causal":
            return torch.ones(count, count, dtype=torch.bool).tril()
        if kind == "table":
            return self.table[self.places].view(count, count, -1).permute(2, 0, 1)
        return None if not kind else getattr(self, kind)


class Patches(nn.Module):
    """A vision transformer of one block: patches become tokens, behind two learned ones."""

    def __init__(self, attention: Attention, is_pooled: bool) -> None:
        super().__init__()
        self.patches, self.is_pooled = nn.Conv2d(3, FEATURES, 2, 2), is_pooled
        self.first = nn.Parameter(torch.randn(1, 2, FEATURES))
        self.places = nn.Parameter(torch.randn(1, TOKENS, FEATURES))
        self.block, self.last = AttentionBlock(attention), nn.Linear(3, 2)

    def forward(self, images: Tensor) -> Tensor:
        """Scores of each image."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first.expand(patches.shape[0], -1, -1), patches], 1) + self.places
        tokens = self.block(tokens)
        scores: Tensor = self.last(tokens.mean(1) if self.is_pooled else tokens[:, 0])
        return scores


SIDE, WIDTH, HEADS, OF_HEAD = 8, 4, 2, 4  # of maps, of windows; heads, and features of each


class Windows(nn.Module):
    """Attention within windows of an image, which lie beside samples: Swin's and MaxViT's.

    Parameters
    ----------
    attend : callable
        A function of the model and of the queries, keys and values of all windows and heads.
    shift : int
        Rows and columns by which windows are shifted.
    is_grid : bool
        Whether a window has every second place, not those next to each other.
    has_mask : bool
        Whether places of different edges of the image do not attend to each other.
    is_dropped : bool
        Whether training drops all of it for some samples (stochastic depth).
    """

    def __init__(
        self,
        attend: Callable[..., Tensor],
        shift: int = 0,
        is_grid: bool = False,
        has_mask: bool = False,
        is_dropped: bool = False,
    ) -> None:
        super().__init__()
        self.attend, self.shift, self.is_grid, self.is_dropped = attend, shift, is_grid, is_dropped
        features = HEADS * OF_HEAD
        self.patches = nn.Conv2d(3, features, 2, 2)
        self.norm, self.project = nn.LayerNorm(features), nn.Linear(features, features)
        self.joint = nn.Linear(features, 3 * features)
        self.bias = nn.Parameter(torch.randn(1, HEADS, WIDTH**2, WIDTH**2))
        windows = (SIDE // WIDTH) ** 2
        mask = torch.randn(windows, WIDTH**2, WIDTH**2) if has_mask else None
        self.register_buffer("mask", mask)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.patches(images).permute(0, 2, 3, 1)
        moved = self.norm(maps).roll((-self.shift, -self.shift), (1, 2))
        count, features = SIDE // WIDTH, maps.shape[-1]
        order = (0, 2, 4, 1, 3, 5) if self.is_grid else (0, 1, 3, 2, 4, 5)
        sizes = (WIDTH, count) if self.is_grid else (count, WIDTH)
        windows = moved.view(-1, *sizes, *sizes, features).permute(order)
        windows = windows.reshape(-1, WIDTH, WIDTH, features).view(-1, WIDTH**2, features)
        joint = self.joint(windows).view(-1, WIDTH**2, 3, HEADS, OF_HEAD).permute(2, 0, 3, 1, 4)
        made = self.attend(self, *joint.unbind(0)).transpose(1, 2).reshape(windows.shape)
        made = self.project(made).view(-1, count, count, WIDTH, WIDTH, features)
        back = [order.index(dim) for dim in range(6)]
        made = made.permute(back).reshape(maps.shape)
        made = made.roll((self.shift, self.shift), (1, 2))
        if self.is_dropped and self.training:
            made = made * maps.new_empty(maps.shape[0], 1, 1, 1).bernoulli_(0.8)
        return maps + made


def by_products(own: Windows, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    weights = query @ key.transpose(-2, -1) + own.bias
    if own.mask is not None:
        shape = -1, len(own.mask), *weights.shape[1:]
        weights = (weights.view(shape) + own.mask[None, :, None]).view(weights.shape)
    return functional.dropout(weights.softmax(-1), 0.2, own.training) @ value


def in_batches(own: Windows, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Heads, too, lie beside samples."""
    query, key, value = (part.flatten(0, 1) for part in (query, key, value))
    weights = torch.bmm(query, key.transpose(1, 2)).softmax(-1)
    return torch.bmm(weights, value).unflatten(0, (-1, HEADS))


def at_once(own: Windows, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    attention = functional.scaled_dot_product_attention
    return attention(query, key, value, attn_mask=own.bias)


OF_WINDOWS = {
    "products": lambda: Windows(by_products),
    "shifted": lambda: Windows(by_products, shift=2, has_mask=True),
    "dropped": lambda: Windows(by_products, is_dropped=True),
    "grid": lambda: Windows(by_products, is_grid=True),
    "batches": lambda: Windows(in_batches),
    "at once": lambda: Windows(at_once),
    "at once, grid": lambda: Windows(at_once, is_grid=True),
}
