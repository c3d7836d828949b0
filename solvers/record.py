"""What the forward pass hands to the reverse pass, and nothing else does.

Rows are written in lockstep: row i is iteration i of the loop for every lane, with ``h = 0`` where a lane rejected the
step or has finished; a step of length zero is the identity. Lanes stand at axis 1, rows, saves and events at axis 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .buffers import get_row, set_row

if TYPE_CHECKING:
    from .forward_walk import ForwardOptions
    from .system import System

ALIGNED = 32  # the record has a multiple of this many rows, so that a reverse sweep can cut it into equal chunks


def record_rows(max_steps: int) -> int:
    """One row more than there can be steps, at least: a reverse sweep starts on an empty one."""
    return (max_steps // ALIGNED + 1) * ALIGNED


class Steps(NamedTuple):
    """Attempted steps. The state on ``[t, t + theta h]`` is the continuous extension of the step."""

    count: Array  # (): rows in use
    t: Array  # (M, B); with checkpoints (C, B), of every stride-th row
    h: Array  # (M, B)
    u: Array  # (M, B, n), state at the start of the step; with checkpoints (C, B, n)
    k: Array | None  # (M, B, s+1, n), slopes, where they are wanted; with checkpoints (C, B, s+1, n)
    theta: Array | None  # (M, B), 1 unless an event cut the step short; kept where events have roots
    stride: Array | None = None  # (), where there are checkpoints


def empty_steps(system: System, options: ForwardOptions, lanes: int, n: int) -> Steps:
    """A record without steps, of states ``(n,)``."""
    m = record_rows(options.max_steps)
    kept = m if options.slots is None else options.slots
    real = jnp.zeros((m, lanes), system.time_dtype)
    return Steps(
        jnp.zeros((), np.int32),
        jnp.zeros((kept, lanes), system.time_dtype),
        real,
        jnp.zeros((kept, lanes, n), system.dtype),
        jnp.zeros((kept, lanes, system.tableau.stages + 1, n), system.dtype) if options.dense else None,
        real + 1 if system.has_roots else None,
        None if options.slots is None else jnp.ones((), np.int32),
    )


def of_one_lane(steps: Steps, fields: tuple[str, ...]) -> Steps:
    """``steps`` of a single lane, without the lane axis in ``fields``."""
    return steps._replace(**{f: jnp.squeeze(getattr(steps, f), 1) for f in fields})


def on_lanes(steps: Steps, fields: tuple[str, ...], lanes: int) -> Steps:
    """``steps`` with the same ``fields`` on all lanes, from arrays without the lane axis."""

    def spread(x: Array) -> Array:
        return jnp.broadcast_to(x[:, None], (x.shape[0], lanes, *x.shape[1:]))

    return steps._replace(**{f: spread(getattr(steps, f)) for f in fields})


def keep(steps: Steps, row: Array, t: Array, u: Array, k: Array) -> Steps:
    """With where row ``row`` starts and its slopes; when the kept ones are full, every other one is dropped."""
    kept, new = (steps.t, steps.u, steps.k), (t, u, None if steps.k is None else k)
    stride = steps.stride
    if stride is None:
        kept = jax.tree.map(lambda x, y: set_row(x, row, y), kept, new)
    else:
        slots = steps.u.shape[0]
        full = row >= slots * stride
        # in place: a copy of what is kept would double the memory
        moves = jnp.where(full, slots // 2, 0)
        halve = lambda i, kept: jax.tree.map(lambda x: set_row(x, i, get_row(x, 2 * i)), kept)  # noqa: E731
        kept = lax.fori_loop(0, moves, halve, kept)
        stride = jnp.where(full, 2 * stride, stride)
        slot, on = row // stride, row % stride == 0
        kept = jax.tree.map(lambda x, y: set_row(x, slot, jnp.where(on, y, get_row(x, slot))), kept, new)
    return steps._replace(t=kept[0], u=kept[1], k=kept[2], stride=stride)


class EventLog(NamedTuple):
    """Events in order; ``callback`` is -1 on unused slots."""

    count: Array  # (B,)
    time: Array  # (E, B)
    callback: Array  # (E, B)
    component: Array  # (E, B), of a vector condition; -1 - c for a downcrossing that had its own affect
    tprev: Array  # (E, B), start of the step that ended here
    row: Array  # (E, B), the row whose end it is; -1 at the start
    stop: Array  # (E, B), index in the schedule; -1 for events on the state
    left: Array  # (E, B, n)
    right: Array  # (E, B, n)
    params: Array | None  # (E, B, m), packed parameters before the event


class Saves(NamedTuple):
    """Saved states at the scheduled times."""

    count: Array  # (B,)
    t: Array  # (S, B)
    u: Array  # (S, B, n)
    row: Array  # (S, B), the row that holds the time; -1 at the start
    segment: Array  # (S, B), events before it


class Outcome(NamedTuple):
    """How a solve ended."""

    status: Array  # (B,)
    t: Array  # (B,)
    u: Array  # (B, n)
    h: Array  # (B,), the step length proposed last
    first: Array  # (B,), and first
    params: Array | None  # (B, m)
    accepted: Array  # (B,)
    rejected: Array  # (B,)
    evaluations: Array  # (B,)


class Result(NamedTuple):
    """All results of the forward loop; ``steps`` is None unless a reverse pass asked for the record."""

    saves: Saves
    events: EventLog
    outcome: Outcome
    steps: Steps | None


def lane_axes(result: Result, alone: tuple[str, ...] = ()) -> Any:
    """The position of the lane axis in each array of a result (-1: the same for all lanes).

    ``alone``: fields of the record that only a single lane has.
    """
    axes = {"count": 0, "status": 0, "accepted": 0, "rejected": 0, "evaluations": 0}

    def of(part, default) -> Any:
        if part is None:
            return None
        return type(part)(
            *(None if x is None else axes.get(f, default) for f, x in zip(part._fields, part, strict=True))
        )

    steps = of(result.steps, 1)
    return Result(
        of(result.saves, 1),
        of(result.events, 1),
        of(result.outcome, 0),
        None
        if steps is None
        else steps._replace(count=-1, stride=None if steps.stride is None else -1, **dict.fromkeys(alone, -1)),
    )
