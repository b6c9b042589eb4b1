"""Measured seconds -> the nearest seconds that rise with both tasks and samples."""

from __future__ import annotations

import numpy as np

from hgpart.arrays import Float64


def rising(measured: Float64) -> Float64:
    """The nearest table that falls along no row and no column.

    Of all such tables it has the least maximal relative error: each figure is half way, on a
    logarithmic scale, between the most measured for no more tasks and samples and the least
    measured for no fewer (isotonic regression in the maximum norm, by V. A. Ubhaya, Isotone
    optimization I, Journal of Approximation Theory 12, 1974). A table that rises already stays as
    it is.

    Parameters
    ----------
    measured : float64 array, shape (tasks, samples), none negative
        Measured seconds.

    >>> rising(np.array([[1.0, 2.0], [1.0, 8.0], [1.0, 2.0]])).tolist()
    [[1.0, 2.0], [1.0, 4.0], [1.0, 4.0]]
    """
    before = np.maximum.accumulate(np.maximum.accumulate(measured, 0), 1)
    after = np.flip(measured)
    after = np.flip(np.minimum.accumulate(np.minimum.accumulate(after, 0), 1))
    risen: Float64 = np.sqrt(before * after)
    return risen
