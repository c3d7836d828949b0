"""Checking what the user asked for, before anything is traced."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import core

from ..solvers.callbacks import Callback, PeriodicCallback, PresetTimeCallback
from ..solvers.schedule import check_many, concrete


def check_state(u0: Any) -> Any:
    """``u0`` with arrays for leaves; integer, boolean and object leaves are refused."""
    for path, x in jax.tree_util.tree_leaves_with_path(u0):
        where = jax.tree_util.keystr(path) or "u0"
        try:
            dtype = jnp.result_type(x)
        except TypeError:
            raise TypeError(f"u0 must hold arrays; at {where} it holds {type(x).__name__}.") from None
        if not jnp.issubdtype(dtype, jnp.inexact):
            raise TypeError(
                f"u0 must be floating point or complex; at {where} it is {dtype}. Write 1.0 for 1, or cast it."
            )
    if not jax.tree.leaves(u0):
        raise ValueError("u0 is empty: it has no array.")
    return jax.tree.map(lambda x: jnp.asarray(x), u0)


def check_span(tspan: Any) -> tuple[Any, Any]:
    if not hasattr(tspan, "__len__") or len(tspan) != 2:
        raise ValueError(f"tspan must be a pair (t0, t1); got {tspan!r}.")
    for name, x in zip(("t0", "t1"), tspan, strict=True):
        value = concrete(x)
        if np.shape(x) != ():
            raise ValueError(f"tspan: {name} must be a number; got shape {np.shape(x)}.")
        if value is not None and not np.isfinite(value):
            raise ValueError(f"tspan: {name} must be finite; got {value}.")
    return tspan[0], tspan[1]


def save_times(
    saveat: Any, t0: Any, t1: Any, save_start: bool | None, save_end: bool | None, everystep: bool
) -> Any:
    """The scheduled save times, from the ``saveat``, ``save_start`` and ``save_end`` arguments."""
    a, b = concrete(t0), concrete(t1)
    if everystep:
        if saveat is not None:
            raise ValueError("save_everystep=True saves the end of every step; give either it or saveat, not both.")
        return _join([t0] if save_start is not False else [])
    if saveat is None:
        return _join(([t0] if save_start is not False else []) + ([t1] if save_end is not False else []))
    known = concrete(saveat)
    if np.ndim(saveat) == 0:
        if known is None or a is None or b is None:
            raise ValueError(
                "saveat as an interval needs its value and tspan to be known when solve is traced; "
                "give the save times as an array instead."
            )
        if known.dtype.kind not in "fiu":
            raise TypeError(f"saveat must be a number, or an array of times; got {saveat!r}.")
        if not (np.isfinite(known) and known > 0):
            raise ValueError(f"saveat as an interval must be a positive number; got {saveat!r}.")
        d, span = (1.0 if b >= a else -1.0), abs(float(b) - float(a))
        count = int(np.floor(span / float(known) * (1 + 1e-12) + 1e-9))
        check_many("saveat", count, "rows")
        offsets = np.arange(count + 1) * float(known)
        offsets = offsets[offsets < span - 1e-9 * float(known)] if span > 0 else offsets[:0]
        if save_start is False and len(offsets):
            offsets = offsets[1:]
        if span == 0:
            return _join([t0])
        inner = t0 + d * offsets
        return _join([inner] + ([t1] if save_end is not False else []))
    if np.ndim(saveat) != 1:
        raise ValueError(f"saveat must be a number or have one axis; got shape {np.shape(saveat)}.")
    if known is not None:
        if known.dtype.kind not in "fiu":
            raise TypeError(f"saveat must hold real numbers; got {known.dtype}.")
        if not np.all(np.isfinite(known)):
            raise ValueError(f"saveat must be finite; got {known}.")
        if a is not None and b is not None:
            near = 4 * np.finfo(np.float32 if _single(known) else float).eps * max(abs(float(a)), abs(float(b)))
            outside = (known < min(a, b) - near) | (known > max(a, b) + near)
            if np.any(outside):
                raise ValueError(
                    f"saveat: {known[outside][0]} lies outside tspan = ({float(a)}, {float(b)})."
                )
    parts: list[Any] = [saveat]
    values = known if known is not None else np.zeros(0)
    if save_start and not (a is not None and np.any(values == a)):
        parts.insert(0, t0)
    if save_end and not (b is not None and np.any(values == b)):
        parts.append(t1)
    return _join(parts)


def _single(x: np.ndarray) -> bool:
    return x.dtype == np.float32


def _join(parts: list[Any]) -> Any:
    if any(isinstance(x, core.Tracer) for x in parts):
        return jnp.concatenate([jnp.atleast_1d(jnp.asarray(x)) for x in _same_dtype(parts)])
    return np.concatenate([np.atleast_1d(np.asarray(x, float)) for x in parts]) if parts else np.zeros(0)


def _same_dtype(parts: list[Any]) -> list[Any]:
    dtype = jnp.result_type(float)
    return [jnp.asarray(x, dtype) for x in parts]


def check_callbacks(callbacks: tuple[Callback, ...], t0: Any, t1: Any) -> list[Any]:
    """The event times of the callbacks at known times."""
    return [
        c.event_times(t0, t1) if isinstance(c, (PeriodicCallback, PresetTimeCallback)) else np.zeros(0)
        for c in callbacks
    ]


def check_number(name: str, value: Any, *, positive: bool) -> Any:
    known = concrete(value)
    if np.shape(value) != ():
        raise ValueError(f"{name} must be a number; got shape {np.shape(value)}.")
    if known is not None and known.dtype.kind not in "fiu":
        raise TypeError(f"{name} must be a number; got {value!r}.")
    if known is not None and not (np.isfinite(known) and (known > 0 if positive else known >= 0)):
        raise ValueError(f"{name} must be a {'positive' if positive else 'non-negative'} number; got {value!r}.")
    return value


def check_method(method: Any) -> None:
    """The options of a sensitivity method: numbers of the kind that their names tell."""
    for name, check in METHOD_OPTIONS.items():
        value = getattr(method, name, None)
        if value is not None:
            check(f"{type(method).__name__}: {name}", value)


def check_count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{name} must be a positive integer; got {value!r}.")
    return int(value)


METHOD_OPTIONS = {
    "rtol": lambda name, x: check_number(name, x, positive=False),
    "atol": lambda name, x: check_number(name, x, positive=False),
    **dict.fromkeys(("max_steps", "order", "chunk", "memory", "checkpoints"), check_count),
}
