"""What an earlier command has kept about a model, or what is made now, which is kept."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from hgpart.tracing.cache import folder
from hgpart.tracing.cache.origins import Origin

Made = TypeVar("Made")


class NotKeptError(Exception):
    """A trace holds what can't be kept; says what."""


def kept_or_new(
    origin: Origin | None,
    about: Any,
    make: Callable[[], Made],
    facts_of: Callable[[Made], Any],
    restored: Callable[[Any], Made],
) -> Made:
    """What was kept about a model of an origin, or else what is made now, which is then kept.

    Parameters
    ----------
    origin : Origin or None
        None keeps nothing.
    about : any
        Anything else that it depends on; its text must be equal in all processes.
    facts_of : callable
        Returns what was made as plain values; it raises a NotKeptError where they do not hold it.
    restored : callable
        Returns what such facts tell.
    """
    if origin is None or not folder.is_on():
        return make()
    key = hashlib.blake2b(repr((origin, about)).encode(), digest_size=16).hexdigest()
    data = folder.load(key)
    if data is not None:
        try:
            return restored(json.loads(zlib.decompress(data)))
        except Exception:  # written by another version, in spite of the key
            folder.drop(key, "can't be read")
    made = make()
    with suppress(NotKeptError):
        facts = json.dumps(facts_of(made), separators=(",", ":"))
        if origin.is_current():
            folder.save(key, zlib.compress(facts.encode(), 1))
    return made
