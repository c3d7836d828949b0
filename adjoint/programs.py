"""The bounded cache of compiled solves.

A program is found by what it computes (the fingerprints of the captured functions), so that a closure made anew in every
call finds the program of the last one. Computations that cannot be compared by value (a custom derivative written inline,
say) are found by the identity of the right-hand side as well. Nothing here keeps the user's functions alive.
"""

from __future__ import annotations

import warnings
import weakref
from collections import OrderedDict
from typing import Any, Callable

from .assemble import Assembled

CACHE_SIZE = 64
RECOMPILATION_WARNING = 16

_programs: OrderedDict[Any, tuple[Any, Any]] = OrderedDict()
_compilations: OrderedDict[Any, int] = OrderedDict()


def find_program(f: Any, built: Assembled, shape: tuple, compile_it: Callable[[], Any]) -> Any:
    """The compiled solve for this computation and these static options, from the cache or new."""
    if built.strict_key is not None:
        key, owner = (built.strict_key, shape), None
    else:
        key, owner = (id(f), built.loose_key, shape), _reference(f)
    if key in _programs:
        kept, program = _programs[key]
        if built.strict_key is not None or (kept is not None and kept() is f):
            _programs.move_to_end(key)
            return program
    _count_compilation(f)
    program = compile_it()
    _programs[key] = (owner, program)
    _programs.move_to_end(key)
    while len(_programs) > CACHE_SIZE:
        _programs.popitem(last=False)
    return program


def clear_cache() -> None:
    """Forget all compiled solves."""
    _programs.clear()
    _compilations.clear()


def _reference(f: Any) -> Any:
    try:
        return weakref.ref(f)
    except TypeError:
        return None


def _count_compilation(f: Any) -> None:
    code = getattr(f, "__code__", None)
    if code is None:
        return
    count = _compilations[code] = _compilations.get(code, 0) + 1
    _compilations.move_to_end(code)
    while len(_compilations) > CACHE_SIZE:
        _compilations.popitem(last=False)
    if count == RECOMPILATION_WARNING:
        warnings.warn(
            f"solve has compiled the right-hand side {getattr(f, '__qualname__', f)!r} {count} times: its computation, or "
            "the structure or options of the solve, differ from call to call. Keep shapes and Python numbers in it "
            "fixed, or wrap the whole loop in jax.jit.",
            stacklevel=4,
        )
