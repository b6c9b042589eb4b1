"""The submodules of a placement, by part."""

from __future__ import annotations

from torch import nn

from hgpart.errors import PlacementError


class Parts(nn.ModuleDict):
    """Submodules of the parts in this process, by number or, for torch's names, its text."""

    def __getitem__(self, part: int | str) -> nn.Module:
        """Return a submodule.

        Raises
        ------
        PlacementError
            If there is no such part in this process.
        """
        if str(part) not in self:
            raise PlacementError(f"part {part!r}: accepted are {', '.join(self)}")
        return super().__getitem__(str(part))
