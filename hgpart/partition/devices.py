"""Traffic between parts + costs of links -> which device each part goes to.

Examples
--------
Parts 0 and 2 have much to say to each other, devices 0 and 1 a fast link:

>>> traffic = np.array([[0, 1, 50], [1, 0, 1], [50, 1, 0]])
>>> links = np.array([[0, 1, 9], [1, 0, 9], [9, 9, 0]])
>>> sorted(cheapest_devices(traffic, links, np.ones((3, 1)))[[0, 2]].tolist())
[0, 1]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hgpart.hypergraph import Int32, Int64


def cheapest_devices(
    traffic: Int64, links: NDArray[np.float64], capacities: NDArray[np.int64]
) -> Int32:
    """Exchange the devices of two parts as long as that makes the traffic cheaper.

    A quadratic assignment, by pairwise exchange (Heider, 1972), over devices that are equal.

    Parameters
    ----------
    traffic : int64 array, shape (k, k)
        Bytes that part s sends to part r at ``[s, r]``.
    links : float64 array, shape (k, k)
    capacities : array, shape (k, limits)
        Devices whose rows are equal are equal.

    Returns
    -------
    int32 array, shape (k,)
        The device of each part.
    """
    k = len(traffic)
    bytes_sent = traffic.astype(np.float64)
    np.fill_diagonal(bytes_sent, 0.0)
    device = np.arange(k)
    better = True
    while better:
        better = False
        for one in range(k):
            for other in range(one + 1, k):
                if (capacities[device[one]] != capacities[device[other]]).any():
                    continue
                exchanged = device.copy()
                exchanged[[one, other]] = device[[other, one]]
                pair = [one, other]
                before = _of_parts(bytes_sent, links, device, pair)
                after = _of_parts(bytes_sent, links, exchanged, pair)
                if after < before * (1 - 1e-9):
                    device, better = exchanged, True
    return device.astype(np.int32)


def _of_parts(
    bytes_sent: NDArray[np.float64],
    links: NDArray[np.float64],
    device: NDArray[np.int64],
    parts: list[int],
) -> float:
    """What the traffic from and to two parts costs."""
    own = device[parts]
    sent = (bytes_sent[parts] * links[own][:, device]).sum()
    received = (bytes_sent[:, parts] * links[device][:, own]).sum()
    one, other = parts
    twice = bytes_sent[one, other] * links[own[0], own[1]]
    twice += bytes_sent[other, one] * links[own[1], own[0]]
    return float(sent + received - twice)
