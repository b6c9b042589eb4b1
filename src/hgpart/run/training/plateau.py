"""Accuracies after each epoch -> when the learning rate decays, and when training ends.

This is the rule of F. Brakel's MSc thesis (2024, section 4.1).
"""

from __future__ import annotations

from dataclasses import dataclass, field

DECAY = 0.8
PATIENCE = 2  # epochs without an improvement
MOST_DECAYS = 3  # without an improvement


@dataclass
class Plateau:
    """Decays the rate when accuracy has not improved for 2 epochs; after three decays, ends.

    Attributes
    ----------
    rate : float
        Learning rate of the next epoch.
    rates, accuracies : list of float
        Learning rate in, and accuracy after, each epoch so far.

    Examples
    --------
    >>> rule = Plateau(rate=1.0)
    >>> [rule.goes_on(accuracy) for accuracy in (0.5, 0.6, 0.6, 0.4, 0.7)]
    [True, True, True, True, True]
    >>> rule.rate
    0.8
    >>> [rule.goes_on(0.7) for _ in range(8)]
    [True, True, True, True, True, True, True, False]
    """

    rate: float
    rates: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)

    def goes_on(self, accuracy: float) -> bool:
        """Take the accuracy after an epoch; returns whether there is another epoch."""
        self.rates.append(self.rate)
        self.accuracies.append(accuracy)
        best = self.accuracies.index(max(self.accuracies))
        times, rest = divmod(len(self.accuracies) - 1 - best, PATIENCE)
        if times > MOST_DECAYS:
            return False
        if times and not rest:
            self.rate *= DECAY
        return True
