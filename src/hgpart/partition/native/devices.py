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

import math
import time

import numpy as np

from hgpart.arrays import Float64, Int32, Int64


def cheapest_devices(
    traffic: Int64,
    links: Float64,
    capacities: Int64,
    deadline: float = math.inf,
) -> Int32:
    """Exchange the devices of two parts as long as that makes the traffic cheaper.

    A quadratic assignment, by the best exchange of a pair at a time (Heider, 1972), over devices
    that are equal, until the deadline (of `time.monotonic`).

    Parameters
    ----------
    traffic : int64 array, shape (k, k)
        Bytes that part s sends to part r at ``[s, r]``.
    links : float64 array, shape (k, k)
        The diagonal is 0.
    capacities : int64 array, shape (k, limits)
        Devices whose rows are equal are equal.

    Returns
    -------
    int32 array, shape (k,)
        The device of each part.
    """
    k = len(traffic)
    sent = traffic.astype(np.float64)
    np.fill_diagonal(sent, 0.0)
    device = np.arange(k)
    equal = (capacities[:, None] == capacities[None, :]).all(axis=2)
    while time.monotonic() < deadline:
        price = links[np.ix_(device, device)]
        # What each part's traffic costs at the device of each other one, that one still there.
        moved = sent @ price.T + sent.T @ price
        now = moved.diagonal()
        between = sent * price + (sent * price).T
        turned = sent * price.T + (sent * price.T).T
        change = moved + moved.T + turned - now[:, None] - now[None, :] + between
        change[~equal[np.ix_(device, device)]] = 0.0
        np.fill_diagonal(change, 0.0)
        part, partner = np.unravel_index(int(change.argmin()), change.shape)
        if not change[part, partner] < -1e-9 * max(1.0, float((sent * price).sum())):
            break
        device[[part, partner]] = device[[partner, part]]
    return device.astype(np.int32)
