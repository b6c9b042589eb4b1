"""The build backend: scikit-build-core, once what it needs is known to be there.

CMake says on many lines that there is no compiler, and pip has by then downloaded torch. Here it is
one line, before anything else: https://peps.python.org/pep-0517 has the hooks.
"""

import os
import sys
from typing import Any

from scikit_build_core import build
from scikit_build_core.build import *  # noqa: F403  (the hooks that are not below)
from toolchain import missing


def _refuse_what_is_missing() -> None:
    if line := missing(os.environ):
        sys.exit(line)


def get_requires_for_build_wheel(*asked: Any, **settings: Any) -> list[str]:
    """Refuse first, where pip prepares the packages that a build needs."""
    _refuse_what_is_missing()
    return build.get_requires_for_build_wheel(*asked, **settings)


def get_requires_for_build_editable(*asked: Any, **settings: Any) -> list[str]:
    """Refuse as for a wheel."""
    _refuse_what_is_missing()
    return build.get_requires_for_build_editable(*asked, **settings)


def build_wheel(*asked: Any, **settings: Any) -> str:
    """Refuse here with ``--no-build-isolation``, where pip prepares no packages."""
    _refuse_what_is_missing()
    return build.build_wheel(*asked, **settings)


def build_editable(*asked: Any, **settings: Any) -> str:
    """Refuse as for a wheel."""
    _refuse_what_is_missing()
    return build.build_editable(*asked, **settings)
