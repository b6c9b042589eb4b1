"""Hypothesis without a deadline: the machines that run the tests are shared and slow at times.

Ctrl-C arrives: a runner in the background ignores it, and the commands that tests start would too.
"""

from __future__ import annotations

import signal

from hypothesis import settings

settings.register_profile("hgpart", deadline=None)
settings.load_profile("hgpart")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
