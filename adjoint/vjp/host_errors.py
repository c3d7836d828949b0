"""Exceptions of host functions: as they were raised, not as the text of a runtime error.

XLA turns an exception of a callback into a `JaxRuntimeError` that holds its traceback as text. The exception itself is
kept aside, and found again by its last line.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Iterator

import jax

_failures: deque[Exception] = deque(maxlen=8)


def remember(error: Exception) -> None:
    """Keep an exception that is about to become text."""
    _failures.append(error)


@contextlib.contextmanager
def own_exceptions() -> Iterator[None]:
    """Raise the exception of a host function itself."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        text = str(error)
        original = next((e for e in reversed(_failures) if f"{type(e).__name__}: {e}" in text), None)
        _failures.clear()
        if original is None:
            raise
        raise original from None
