"""Hypothesis without a deadline: the machines that run the tests are shared and slow at times."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("hgpart", deadline=None)
settings.load_profile("hgpart")
