"""The build backend: scikit-build-core's hooks, once what they need is known to be there.

CMake says on many lines that there is no compiler, and pip has by then downloaded torch. Here it is
one line, before anything else.
"""

import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from scikit_build_core import build
from scikit_build_core.build import build_sdist, get_requires_for_build_sdist
from scikit_build_core.errors import CMakeNotFoundError, NinjaNotFoundError
from toolchain import missing


def _refusing(hook: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(hook)
    def checked(*asked: Any, **settings: Any) -> Any:
        if line := missing(os.environ):
            sys.exit(line)
        try:
            return hook(*asked, **settings)
        except (CMakeNotFoundError, NinjaNotFoundError) as error:  # with --no-build-isolation alone
            sys.exit(f"hgpart is compiled. {error}: pip install cmake ninja")

    return checked


get_requires_for_build_wheel = _refusing(build.get_requires_for_build_wheel)
prepare_metadata_for_build_wheel = _refusing(build.prepare_metadata_for_build_wheel)
build_wheel = _refusing(build.build_wheel)

get_requires_for_build_editable = _refusing(build.get_requires_for_build_editable)
prepare_metadata_for_build_editable = _refusing(build.prepare_metadata_for_build_editable)
build_editable = _refusing(build.build_editable)

__all__ = ["build_sdist", "get_requires_for_build_sdist"]
