"""Equal cells one behind the other -> the same cells side by side: all read one map, and add up.

F. Brakel's ParallelResNet (MSc thesis, 2024, section 3.3.1).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from torch import Tensor, nn

from hgpart.transformation.residual import residual


class Parallel(nn.Module):
    """Cells side by side: what each adds to their input is added up, once with the input itself.

    Cell p is ``part_p``, whose one module is named after the cell: ``from_1`` was at place 1 of
    its container. The additions, and what follows them (``after``, an activation or nothing), are
    part 0's.

    Parameters
    ----------
    cells : mapping of str to nn.Module
        By their names, in order; their parameters become this module's.

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
        found = {name: residual(cell) for name, cell in cells.items()}
        for part, (name, one) in enumerate(found.items()):
            branch = nn.Sequential(OrderedDict({f"from_{name}": one.branch}))
            self.add_module(f"part_{part}", branch)
        self.parts = len(found)
        self.after = next(iter(found.values())).after

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, H, W) -> the same shape."""
        # Part 0 computes last, and so it is part 0 that adds up.
        others = [self.get_submodule(f"part_{part}")(x) for part in range(1, self.parts)]
        total = self.get_submodule("part_0")(x)
        for other in others:
            total = total + other
        result: Tensor = self.after(total + x)
        return result
