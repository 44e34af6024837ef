"""Decoders are made by one thread at a time: two that make the same one at once crash msgspec (0.22)."""

from __future__ import annotations

import threading
from typing import Any

import msgspec

_LOCK = threading.Lock()


def make_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """A decoder of JSON for a type.

    >>> make_decoder(list[int]).decode(b"[1]")
    [1]
    """
    with _LOCK:
        return msgspec.json.Decoder(kind)
