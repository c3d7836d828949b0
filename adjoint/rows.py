"""From the results of the core to the rows of a `Solution`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..solvers.integrate import RetCode
from ..solvers.record import Result
from ..solvers.schedule import RowPlan, Schedule, plan_rows
from ..solvers.system import System
from ..solvers.undefined import shown_as, undefined


def known_plan(system: System, schedule: Schedule, counts: list[int], concrete: bool) -> RowPlan | None:
    """The rows of a solve whose events are all known, decided before it runs; None where some depend on the state.

    ``counts``: the number of events of each callback.
    """
    if system.has_state_events:
        return None
    xp = np if concrete else jnp
    count = schedule.stops.shape[0] - 1
    callback = schedule.callback[:count]
    at_start = xp.cumsum(xp.logical_not(schedule.tied[:count]).astype(np.int32)) == 0
    left_flags = np.array([s.save_left for s in system.events] + [False])
    right_flags = np.array([s.save_right for s in system.events] + [False])
    left = xp.asarray(left_flags)[callback] & ~at_start
    right = xp.asarray(right_flags)[callback]
    on_event = schedule.save_event >= 0
    saved_by_event = xp.concatenate([left, xp.zeros(1, bool)])[xp.where(on_event, schedule.save_event, count)]
    # the left limit of an instant is that of its first event; a save there is that row, once
    kept = xp.logical_not(saved_by_event)
    side = xp.where(on_event, -1, 0).astype(np.int32)
    limits = sum(c * (e.save_left + e.save_right) for c, e in zip(counts, system.events, strict=True))
    capacity = None if concrete else schedule.saves.shape[0] + limits
    return plan_rows(xp, (schedule.save_stop, kept, side), (left, right), capacity)


def state_plan(system: System, schedule: Schedule, result: Result, everystep: bool) -> RowPlan:
    """The rows of a solve with events on the state, or with a row for every step."""
    log, saves, outcome = result.events, result.saves, result.outcome
    left_flags = jnp.array([s.save_left for s in system.events] + [False])
    right_flags = jnp.array([s.save_right for s in system.events] + [False])
    used = jnp.arange(log.time.shape[0], dtype=np.int32) < log.count
    callback = jnp.where(used, log.callback, len(system.events))
    left = left_flags[callback] & (log.row >= 0) & used
    if everystep and log.time.shape[0]:
        # the end of a step on an event moves with the event: its row is the left limit of the first event there
        left = left | (used & (log.row >= 0) & jnp.append(jnp.ones(1, bool), log.row[1:] != log.row[:-1]))
    right = right_flags[callback] & used
    slots = saves.t.shape[0]
    count = schedule.saves.shape[0]
    ends = outcome.status == RetCode.Terminated
    taken = jnp.arange(slots, dtype=np.int32) < jnp.where(ends, saves.count, slots if not everystep else saves.count)
    # a save on an event that saves its left limit is that row, once
    n_events = log.time.shape[0]
    if n_events:
        segment = jnp.where(taken, saves.segment, n_events)
        same = saves.t == jnp.concatenate([log.time, jnp.full(1, jnp.nan, log.time.dtype)])[segment]
        scheduled = jnp.concatenate([schedule.save_event, jnp.full(slots - count, -1, np.int32)])
        stop = jnp.concatenate([log.stop, jnp.full(1, -2, np.int32)])[segment]
        on_event = ((scheduled >= 0) & (stop == scheduled)) | (same & everystep)
        dropped = on_event & jnp.concatenate([left, jnp.zeros(1, bool)])[segment]
        side = jnp.where(on_event, -1, 0)
    else:
        dropped, side = jnp.zeros(slots, bool), jnp.zeros(slots, np.int32)
    capacity = slots + n_events * 2
    save_left = everystep or any(s.save_left for s in system.events)
    if not save_left or not any(s.save_right for s in system.events):
        capacity = slots + n_events
    if not (save_left or any(s.save_right for s in system.events)):
        capacity = slots
    return plan_rows(
        jnp, (saves.segment, taken & ~dropped, side.astype(np.int32)), (left, right), capacity
    )


@jax.custom_vjp
def without_gradient(t: Any) -> Any:
    """Times of the steps; a gradient that would have to pass through them is refused."""
    return t


def _refuse(_, __):
    raise TypeError(
        "sol.ts has no gradient with save_everystep=True: where a step ends is the choice of the step control. Ask for the "
        "rows with saveat=..., read event times from sol.events.times, or take the times as constants, "
        "jax.lax.stop_gradient(sol.ts)."
    )


without_gradient.defvjp(lambda t: (t, None), _refuse)


def hide_step_times(system: System, result: Result, everystep: bool, by_tangents: bool) -> Result:
    """The times that the steps decide have no derivative: it is refused, or NaN where tangents run along (``by_tangents``).

    The reverse methods find a discrete event's time by themselves: `Jumped.trouble`.
    """
    saves, log = result.saves, result.events

    def nan_tangent(t, u, where):
        # a time that no tangent reaches would be a zero without a word: it is tied to the state there
        return undefined(t + 0 * jnp.where(where, jnp.sum(u, -1).real, 0), where)

    if everystep:
        used = jnp.isfinite(saves.t)
        saves = saves._replace(t=nan_tangent(saves.t, saves.u, used) if by_tangents else without_gradient(saves.t))
    if by_tangents and log.time.shape[0]:
        discrete = jnp.array([spec.kind == "discrete" for spec in system.events])
        log = log._replace(time=nan_tangent(log.time, log.left, (log.callback >= 0) & discrete[log.callback]))
    return result._replace(saves=saves, events=log)


def gather_rows(plan: RowPlan, schedule: Schedule, result: Result, everystep: bool) -> tuple[Any, Any]:
    """Times ``(R,)`` and flat states ``(R, n)``; padding rows hold inf and NaN.

    They take no cotangent, unless the solve failed: then any one that is not zero tells that the solve is used, and its
    derivatives are NaN.
    """
    saves, log, outcome = result.saves, result.events, result.outcome
    times = saves.t if everystep else jnp.asarray(schedule.saves)
    t = jnp.concatenate([times, log.time, log.time])[plan.source]
    u = jnp.concatenate([saves.u, log.left, log.right])[plan.source]
    valid = jnp.asarray(plan.valid)
    failed = outcome.status > RetCode.Terminated
    no_time, no_row = (jnp.where(failed, shown_as(x, y), x) for x, y in ((jnp.inf, outcome.t), (jnp.nan, outcome.u)))
    return jnp.where(valid, t, no_time), jnp.where(valid[:, None], u, no_row)
