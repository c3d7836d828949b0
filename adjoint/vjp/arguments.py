"""Whether a user's function can be called as a backend will call it."""

from __future__ import annotations

import inspect
from typing import Callable


def check_arguments(label: str, name: str, function: Callable, arguments: tuple[str, ...], hint: str = "") -> None:
    """TypeError if ``function`` does not take ``arguments`` by position; ``label`` and ``name`` say whose it is."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        raise TypeError(
            f"{label}: {name} must take ({', '.join(arguments)}); got {name}{inspect.signature(function)}.{hint}"
        ) from None
    except ValueError:  # compiled functions may not tell
        pass
