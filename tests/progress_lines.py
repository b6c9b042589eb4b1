"""What is under way is said to a pipe now and then, and so where a test looks for errors."""

from __future__ import annotations

import re


def without_progress(errors: str) -> str:
    """Standard error of a process without such lines.

    >>> without_progress("hgpart: trace (5 s)\\nhgpart: interrupted\\n")
    'hgpart: interrupted\\n'
    """
    return re.sub(r"^hgpart: .* \(\d+ s\)\n", "", errors, flags=re.MULTILINE)
