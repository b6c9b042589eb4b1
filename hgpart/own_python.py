"""Code -> the command of another process that imports what this one does.

Of `python -m` and `python -c` the present folder is the first that is searched, and one with a
folder named hgpart in it, as a checkout is, would take the place of the installed package.
"""

from __future__ import annotations

import os
import sys


def own_python(code: str) -> list[str]:
    """Begin a command with Python, some code for it, and this process's `sys.path`.

    What is appended to the command is ``sys.argv[1:]`` there.
    """
    start = f"import sys; sys.path[:] = sys.argv.pop(1).split({os.pathsep!r}); {code}"
    return [sys.executable, "-c", start, os.pathsep.join(sys.path)]
