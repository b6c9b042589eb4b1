"""Equal cells in a row -> the same cells side by side: all read one map, and add up.

F. Brakel's ParallelResNet (MSc thesis, 2024, section 3.3.1).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from torch import Tensor, nn

from hgpart.transformation.residual import residual


class Parallel(nn.Module):
    """Cells side by side: their contributions are added up, once with the input itself.

    Cell p is ``part_p``, with one module named after the cell: ``from_1`` was at place 1 of its
    container. Part 0 does the additions, and what follows them (``after``, an activation or
    nothing).

    Parameters
    ----------
    cells : mapping of str to nn.Module
        Cells by name, in order; their parameters become this module's.

    Raises
    ------
    CellError
        If a cell can't be taken apart.

    Examples
    --------
    >>> import torch
    >>> class Skip(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.inner = nn.Conv2d(4, 4, 1)
    ...
    ...     def forward(self, x):
    ...         return torch.relu(self.inner(x) + x)
    >>> made = Parallel({"0": Skip(), "1": Skip()})
    >>> [name for name, _ in made.named_parameters()][:2]
    ['part_0.from_0.inner.weight', 'part_0.from_0.inner.bias']
    """

    def __init__(self, cells: Mapping[str, nn.Module]) -> None:
        super().__init__()
        residuals = {name: residual(cell) for name, cell in cells.items()}
        for part, (name, taken_apart) in enumerate(residuals.items()):
            branch = nn.Sequential(OrderedDict({f"from_{name}": taken_apart.branch}))
            self.add_module(f"part_{part}", branch)
        self.parts = len(residuals)
        self.after = next(iter(residuals.values())).after

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, H, W) -> the same shape."""
        # Part 0 computes last, and so part 0 adds up.
        branches = [self.get_submodule(f"part_{part}")(x) for part in range(1, self.parts)]
        total = self.get_submodule("part_0")(x)
        for branch in branches:
            total = total + branch
        result: Tensor = self.after(total + x)
        return result
