"""What functions close over, by name: nonlocals, globals, bound objects and their attributes.

A jaxpr knows the arrays that a function captured, but not what they are called. The names are found on the function
itself: its closure, the globals that it reads, the object that it is bound to or is, and the arrays inside those.
"""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any, Iterator

import jax
import numpy as np
from jax import core

DEPTH = 4


def arrays_held(function: Any) -> list[tuple[str, Any]]:
    """``(name, value)`` of the arrays, mutable references and Python floats that ``function`` can reach by closure."""
    found: list[tuple[str, Any]] = []
    seen: set[int] = set()
    for name, value in _walk("", function, DEPTH, seen):
        if not any(value is other for _, other in found if not isinstance(other, float)):
            found.append((name, value))
    return found


def is_reference(x: Any) -> bool:
    """Whether ``x`` is one of JAX's mutable arrays (`jax.new_ref`)."""
    return type(getattr(x, "aval", None)).__name__ == "AbstractRef" or isinstance(x, getattr(jax, "Ref", ()))


def mutable_buffers(function: Any) -> list[str]:
    """The names of the writable NumPy arrays and mutable references that ``function`` can reach."""
    return [
        name
        for name, x in arrays_held(function)
        if is_reference(x) or (isinstance(x, np.ndarray) and x.flags.writeable)
    ]


def _walk(name: str, x: Any, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if isinstance(x, (np.ndarray, jax.Array, core.Tracer, float, np.generic)) or is_reference(x):
        yield name, x
        return
    if depth == 0 or id(x) in seen or isinstance(x, (types.ModuleType, type, str, bytes, int, type(None))):
        return
    seen.add(id(x))
    for inner, value in _inside(name, x):
        yield from _walk(inner, value, depth - 1, seen)


def _inside(name: str, x: Any) -> Iterator[tuple[str, Any]]:
    dot = f"{name}." if name else ""
    if isinstance(x, functools.partial):
        yield name, x.func
        for i, value in enumerate(x.args):
            yield f"{dot}args[{i}]", value
        for key, value in x.keywords.items():
            yield f"{dot}{key}", value
    elif isinstance(x, types.MethodType):
        yield f"{dot}self", x.__self__
        yield name, x.__func__
    elif isinstance(x, types.FunctionType):
        yield from _variables(x)
    elif isinstance(x, dict):
        for key, value in x.items():
            yield f"{name}[{key!r}]", value
    elif isinstance(x, (list, tuple)):
        for i, value in enumerate(x):
            yield f"{name}[{i}]", value
    elif hasattr(x, "__wrapped__"):
        yield name, x.__wrapped__
    elif _is_users(type(x)):
        for key, value in _attributes(x):
            yield f"{dot}{key}", value
        call = inspect.getattr_static(type(x), "__call__", None)
        if inspect.isfunction(inspect.unwrap(call) if callable(call) else None):
            yield name, inspect.unwrap(call)


def _variables(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    if not _is_users(function):
        return
    code = function.__code__
    for key, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield key, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    names = {n for c in (code, *inner) for n in c.co_names}
    for key, value in function.__globals__.items():
        if key in names and not key.startswith("__"):
            yield key, value
    for key, value in zip(reversed(inspect.getfullargspec(function).args), reversed(function.__defaults__ or ())):
        yield key, value


def _attributes(x: Any) -> Iterator[tuple[str, Any]]:
    try:
        yield from vars(x).items()
    except TypeError:
        for key in getattr(type(x), "__slots__", ()):
            if hasattr(x, key):
                yield key, getattr(x, key)


def _is_users(x: Any) -> bool:
    """Not one of the libraries that the walk need not enter."""
    module = (getattr(x, "__module__", "") or "").split(".")[0]
    return module not in ("jax", "jaxlib", "numpy", "scipy", "builtins", "functools")
