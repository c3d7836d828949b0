"""Known stops and save times, put in order once, before the loop.

Whether two times are the same is decided here, by a tolerance of a few units in the last place, and from then on by
index: the loop never asks whether a float "is" an event. Events at one instant keep the order of their callbacks.
A save time on an event belongs to the segment that ends there, and so gets the left limit.

Times may be traced. Their order is then part of the computation; the values keep their gradients either way.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import core, lax


def concrete(x: Any) -> np.ndarray | None:
    """The value of ``x`` where it is known now (also under `jax.grad` outside jit), else None."""
    while isinstance(x, core.Tracer):
        x = getattr(x, "primal", None)
        if x is None:
            return None
    return np.asarray(x)


MANY = 10**7


def check_many(name: str, count: int, what: str) -> None:
    """Refuse what would fill the memory before it fails."""
    if count > MANY:
        raise ValueError(f"{name}: {count} {what} in tspan; at most {MANY} are possible. Is it in the unit of tspan?")


class Schedule(NamedTuple):
    """``K`` known events and the end, ``S`` save times, in the order of integration."""

    t0: Any
    t1: Any
    stops: Any  # (K+1,), the last one is t1
    callback: Any  # (K+1,), index of the callback, -1 for the end
    tied: Any  # (K+1,) bool: the same instant as the stop before it, or as t0
    saves: Any  # (S,)
    save_stop: Any  # (S,), the stop that ends the segment of the save
    save_event: Any  # (S,), the event on which the save falls, or -1
    first_saves: Any  # (), number of saves that fall on t0
    valid: Any  # () bool: every time lies within the span


def make_schedule(t0, t1, event_times: Sequence[Any], saves, dtype) -> Schedule:
    """Order ``event_times`` (one array for each known callback, in set order) and ``saves`` along (t0, t1)."""
    arrays = [t0, t1, saves, *event_times]
    values = [concrete(x) for x in arrays]
    known = all(v is not None for v in values)
    xp = np if known else jnp
    if known:
        a0, a1, sv, *ev = (np.asarray(v, dtype) for v in values)
    else:
        a0, a1, sv, *ev = (lax.stop_gradient(jnp.asarray(x, dtype)) for x in arrays)
    d = xp.where(a1 >= a0, xp.ones((), dtype), -xp.ones((), dtype))
    tol = np.asarray(4 * np.finfo(dtype).eps, dtype) * xp.maximum(xp.abs(a0), xp.abs(a1))

    owner = np.concatenate([np.full(len(e), i, np.int32) for i, e in enumerate(ev)] + [np.zeros(0, np.int32)])
    count = len(owner)
    if count:
        times = xp.concatenate(ev)
        order, snapped, tied = _order_events(xp, d, times, owner, a0, a1, tol)
        raw = times if known and not any(isinstance(x, core.Tracer) for x in event_times) else None
        raw = jnp.concatenate([jnp.asarray(x, dtype) for x in event_times]) if raw is None else raw
        stops = raw[order] + (snapped - times[order])
        callback = xp.asarray(owner)[order]
    else:
        stops, snapped = xp.zeros(0, dtype), xp.zeros(0, dtype)
        callback, tied = xp.zeros(0, np.int32), xp.zeros(0, bool)

    save_order = xp.argsort(d * sv, stable=True)
    sv = sv[save_order]
    traced_saves = not known or isinstance(saves, core.Tracer)
    saves = (jnp.asarray(saves, dtype) if traced_saves else np.asarray(saves, dtype))[save_order]
    save_stop = xp.searchsorted(d * snapped, d * sv - tol, side="left").astype(np.int32)
    nearest = xp.concatenate([snapped, xp.full(1, np.nan, dtype)])[xp.minimum(save_stop, count)]
    save_event = xp.where(xp.abs(sv - nearest) <= tol, save_stop, -1).astype(np.int32)
    inside = xp.all((d * sv >= d * a0 - tol) & (d * sv <= d * a1 + tol))
    if count:
        inside = inside & xp.all(xp.isfinite(times))  # sorted, one that is not would pass for the last of the others
        inside = inside & xp.all((d * snapped >= d * a0 - tol) & (d * snapped <= d * a1 + tol))
    end_tied = (xp.abs(snapped[-1] - a1) <= tol) if count else xp.abs(a1 - a0) <= tol
    time = jnp.asarray if any(isinstance(x, core.Tracer) for x in arrays) else np.asarray
    t1 = time(t1, dtype)
    return Schedule(
        t0=time(t0, dtype),
        t1=t1,
        stops=(np if isinstance(stops, np.ndarray) and not isinstance(t1, jax.Array) else jnp).concatenate(
            [stops, t1[None]]
        ),
        callback=xp.concatenate([callback, xp.full(1, -1, np.int32)]).astype(np.int32),
        tied=xp.concatenate([tied, xp.reshape(end_tied, (1,))]),
        saves=saves,
        save_stop=save_stop,
        save_event=save_event,
        first_saves=xp.sum(xp.abs(sv - a0) <= tol).astype(np.int32),
        valid=inside,
    )


def _order_events(xp, d, times, owner, a0, a1, tol):
    """Order events by instant, then by callback; returns ``(order, instants, same instant as the one before)``."""
    by_time = xp.argsort(d * times, stable=True)
    t = times[by_time]
    apart = xp.concatenate([xp.zeros(1, bool), d * (t[1:] - t[:-1]) > tol])
    group = xp.cumsum(apart.astype(np.int32))
    first = t[xp.searchsorted(group, group, side="left")]
    within = xp.argsort(group * np.int32(max(owner) + 1) + xp.asarray(owner)[by_time], stable=True)
    first = xp.where(xp.abs(first - a0) <= tol, a0, first)
    first = xp.where(xp.abs(first - a1) <= tol, a1, first)
    snapped, apart = first[within], apart
    before = xp.concatenate([xp.reshape(a0, (1,)), snapped[:-1]])
    return by_time[within], snapped, snapped == before


class RowPlan(NamedTuple):
    """Where each output row comes from: an index into saves, left limits and right limits, laid end to end."""

    source: Any  # (R,)
    valid: Any  # (R,)
    sides: Any  # (R,)


def plan_rows(xp, saves, events, capacity: int | None) -> RowPlan:
    """Merge saves and event limits in time order, by integer keys only.

    ``saves = (segment, kept, side)``, arrays over S: events before the save, whether it makes a row, its side.
    ``events = (left, right)``, booleans over E: which limits of the e-th event make rows.
    ``capacity``: the number of rows, or None to keep just the valid ones (needs concrete input).
    """
    segment, kept, side = saves
    left, right = events
    e = xp.arange(left.shape[0], dtype=np.int32)
    far = np.int32(2**30)
    keys = xp.concatenate(
        [
            xp.where(kept, 3 * segment, far),
            xp.where(left, 3 * e + 1, far),
            xp.where(right, 3 * e + 2, far),
        ]
    )
    sides = xp.concatenate([side, xp.full_like(e, -1), xp.full_like(e, 1)])
    source = xp.argsort(keys, stable=True)
    source = source[: int(xp.sum(keys < far)) if capacity is None else capacity]
    valid = keys[source] < far
    return RowPlan(source.astype(np.int32), valid, xp.where(valid, sides[source], 0))
