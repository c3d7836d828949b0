"""The forward walk: saving, recording and events along the loop.

Saved rows are read off the continuous extension of the step that holds them; they cost no step and no evaluation.
Rows, saves and the event log are written as the solve goes; the reverse pass reads them and nothing else.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .buffers import put, set_row, take, where_lanes
from .events import Conditions, RootState, find_roots, time_resolution
from .integrate import Arrival, RetCode, Walk
from .record import EventLog, Saves, Steps, empty_steps, keep
from .runge_kutta import Step, interpolate
from .schedule import Schedule
from .system import LaneSystem


class ForwardArgs(NamedTuple):
    """Arrays of one solve, without the parameters. Inside the loop each carries a leading lane axis."""

    u0: Any
    schedule: Schedule
    rtol: Any
    atol: Any
    dt0: Any | None


class ForwardOptions(NamedTuple):
    """Static choices of one solve."""

    max_steps: int
    max_events: int
    everystep: bool = False
    record: bool = False
    dense: bool = False
    bounded: bool = False  # the loop can be differentiated in reverse by JAX
    slots: int | None = None  # states kept, where not all of them are
    window: int = 0  # the most rows between two of them
    block: int = 1  # the fewest rows that are replayed together


class ForwardAux(NamedTuple):
    """What the forward walk carries along."""

    p: Array | None
    stop: Array  # index of the next stop, (B,)
    due: Array  # index of the next save, (B,)
    saves: Saves
    events: EventLog
    steps: Steps | None
    roots: RootState | None
    terminated: Array


class ForwardWalk(Walk):
    """Walks a `LaneSystem` along a `Schedule`."""

    def __init__(self, system: LaneSystem, args: ForwardArgs, options: ForwardOptions):
        self.system, self.args, self.options = system, args, options
        self.spec = system.system
        self.direction = jnp.where(args.schedule.t1 >= args.schedule.t0, 1, -1).astype(self.spec.time_dtype)
        self.stops = args.schedule.stops.T  # (K+1, B)
        self.known = args.schedule.stops.shape[1] - 1
        self.conditions = Conditions(system) if self.spec.has_roots else None

    def rhs(self, aux: ForwardAux, t: Array, u: Array) -> Array:
        return self.system.rhs(t, u, aux.p)

    def initial(self, steps: Steps | None = None) -> ForwardAux:
        """At the start; ``steps``: a record that may be overwritten."""
        schedule, spec, options = self.args.schedule, self.spec, self.options
        u0 = self.args.u0
        lanes, n = u0.shape
        real, i32 = spec.time_dtype, np.int32
        s = options.max_steps + 2 if options.everystep else 0
        slots = schedule.saves.shape[1] + s
        padding = jnp.full((s, lanes), jnp.inf, real)
        saved = jnp.full((slots, lanes, n), jnp.nan, spec.dtype)
        at_start = jnp.arange(slots, dtype=np.int32)[:, None] < schedule.first_saves[None, :]
        saves = Saves(
            schedule.first_saves,
            jnp.concatenate([schedule.saves.T, padding]),
            jnp.where(at_start[..., None], lax.stop_gradient(u0) if options.bounded else u0, saved),
            jnp.full((slots, lanes), -1, i32),
            jnp.zeros((slots, lanes), i32),
        )
        e = self.known + (options.max_events if spec.has_state_events else 0)
        p = self.system.first_params()
        unset = jnp.full((e, lanes), -1, i32)
        events = EventLog(
            jnp.zeros(lanes, i32),
            jnp.full((e, lanes), jnp.inf, real),
            unset,
            unset,
            jnp.zeros((e, lanes), real),
            unset,
            unset,
            jnp.full((e, lanes, n), jnp.nan, spec.dtype),
            jnp.full((e, lanes, n), jnp.nan, spec.dtype),
            None if p is None else jnp.zeros((e, *p.shape), p.dtype),
        )
        if steps is not None:
            steps = steps._replace(count=jnp.zeros_like(steps.count))
            steps = steps if steps.stride is None else steps._replace(stride=jnp.ones_like(steps.stride))
        elif options.record:
            steps = empty_steps(spec, options, lanes, n)
        roots = None if self.conditions is None else self.conditions.first(lanes)
        no = jnp.zeros(lanes, bool)
        return ForwardAux(p, jnp.zeros(lanes, i32), schedule.first_saves, saves, events, steps, roots, no)

    # -- along a step

    def locate(self, aux: ForwardAux, step: Step, accepted, landed):
        fired, theta = jnp.zeros_like(accepted), None
        if self.conditions is not None and aux.roots is not None:
            resolution = time_resolution(self.args.schedule.t0, self.args.schedule.t1)
            roots, fired, theta = find_roots(self.conditions, aux.roots, step, aux.p, accepted, resolution)
            aux = aux._replace(roots=roots)
            fired = fired | roots.invalid  # where the solve ends: see `arrive`
        for spec in self.spec.events:
            if spec.kind == "discrete":
                t1 = jnp.where(landed, take(self.stops, aux.stop), step.t + step.h)
                fired = fired | (accepted & ~fired & self._holds(spec, step.u1, aux.p, t1, step.t))
        return aux, fired, theta

    def _holds(self, spec, u, p, t, tprev) -> Array:
        return self.system.lift(lambda th, *a: spec.condition(a[0], th, a[1], a[2])[0], u, t, tprev, p=p)

    def after_step(self, aux: ForwardAux, step: Step, accepted, landed, theta, row, extra) -> ForwardAux:
        if aux.steps is not None:
            steps = aux.steps
            slopes = where_lanes(accepted, step.k, jnp.zeros_like(step.k))
            h = jnp.where(accepted, step.h, jnp.zeros_like(step.h))
            steps = keep(steps, row, step.t, step.u, slopes)
            steps = steps._replace(
                count=row + 1,
                h=set_row(steps.h, row, h),
                theta=None if steps.theta is None else set_row(steps.theta, row, theta),
            )
            aux = aux._replace(steps=steps)
        end = jnp.where(landed, take(self.stops, aux.stop), step.t + step.h)
        if theta is not None:
            end = jnp.where(theta < 1, step.t + theta * step.h, end)
        return self._save_step(aux, step, accepted, landed, end, row)

    def _save_step(self, aux: ForwardAux, step: Step, accepted, landed, end, row) -> ForwardAux:
        schedule = self.args.schedule
        count = schedule.saves.shape[1]
        times, segment = schedule.saves.T, schedule.save_stop.T
        if self.options.everystep:
            return self._save_end(aux, step, accepted, landed, end, row)
        if count == 0:
            return aux

        def pending(due):
            reached = landed | (self.direction * take(times, due) <= self.direction * end)
            return accepted & (due < count) & (take(segment, due) == aux.stop) & reached

        # a loop that is differentiated in reverse reads its rows off the record afterwards: see `rows_of_record`
        if self.options.bounded:
            step, end = lax.stop_gradient((step, end))
            times = lax.stop_gradient(times)

        def save(carry):
            due, saves = carry
            on = pending(due)
            value = self._at(step, take(times, due))
            return due + on, saves._replace(
                u=put(saves.u, due, value, on),
                row=put(saves.row, due, jnp.broadcast_to(row, due.shape), on),
                segment=put(saves.segment, due, aux.events.count, on),
            )

        due, saves = lax.while_loop(lambda c: jnp.any(pending(c[0])), save, (aux.due, aux.saves))
        return aux._replace(due=due, saves=saves._replace(count=due))

    def _at(self, step: Step, t: Array) -> Array:
        some = step.h != 0
        theta = jnp.where(some, (t - step.t) / jnp.where(some, step.h, 1.0), jnp.ones_like(t))
        return interpolate(self.spec.tableau, step.u, step.h, step.k, jnp.clip(theta, 0.0, 1.0))

    def _save_end(self, aux: ForwardAux, step: Step, accepted, landed, end, row) -> ForwardAux:
        """One row at the end of every accepted step of nonzero length."""
        on = accepted & (end != step.t)
        due, saves = aux.due, aux.saves
        value = self._at(step, end)
        saves = saves._replace(
            t=put(saves.t, due, end, on),
            u=put(saves.u, due, value, on),
            row=put(saves.row, due, jnp.broadcast_to(row, due.shape), on),
            segment=put(saves.segment, due, aux.events.count, on),
            count=due + on,
        )
        return aux._replace(due=due + on, saves=saves)

    # -- at the end of a step

    def arrive(self, aux: ForwardAux, t: Array, u: Array, tprev: Array, landed, fired, row) -> Arrival:
        schedule = self.args.schedule
        arrived, restart, full = landed, jnp.zeros_like(landed), jnp.zeros_like(landed)
        tied, callback = schedule.tied.T, schedule.callback.T
        for index, spec in enumerate(self.spec.events):
            component = jnp.zeros_like(aux.stop)
            if spec.kind == "known":
                fire = arrived & (take(callback, aux.stop) == index)
            elif spec.kind == "discrete":
                fire = (landed | fired) & self._holds(spec, u, aux.p, t, tprev) & (row >= 0)
            else:
                aux, u, fired_here = self._fire_roots(aux, index, spec, t, u, tprev, fired, row)
                restart = restart | fired_here
                continue
            extra = tprev if spec.kind == "discrete" else t
            aux, u = self._apply(aux, index, spec, component, t, u, tprev, extra, fire, row)
            restart = restart | fire
            if spec.kind == "known":
                stop = aux.stop + fire
                arrived = arrived & (~fire | take(tied, stop))
                aux = aux._replace(stop=stop)
        if self.spec.has_state_events:
            full = aux.events.count > self.options.max_events + aux.stop
        if aux.roots is not None:
            aux = aux._replace(roots=aux.roots._replace(fresh=aux.roots.fresh | restart))
        ended = arrived & (aux.stop == self.known)
        status = jnp.where(ended, RetCode.Success, RetCode.Running)
        status = jnp.where(aux.terminated, RetCode.Terminated, status)
        status = jnp.where(full, RetCode.MaxEvents, status)
        if aux.roots is not None:
            status = jnp.where(aux.roots.invalid, RetCode.NonFinite, status)
        return Arrival(aux, u, take(self.stops, aux.stop), restart, status)

    def _fire_roots(self, aux: ForwardAux, index, spec, t, u, tprev, fired, row):
        roots = aux.roots
        assert self.conditions is not None and roots is not None
        any_fired = jnp.zeros_like(fired)
        for component in range(spec.components):
            for up in (True, False):
                affect = spec.affect if up else spec.affect_neg
                if affect is None or (up and not spec.affect_up):
                    continue
                fire = fired & self.conditions.fires(roots, spec, component, up)
                code = jnp.full_like(aux.stop, component if up else -1 - component)
                where = jnp.full_like(aux.stop, component)
                aux, u = self._apply(aux, index, spec, code, t, u, tprev, where, fire, row, affect)
                any_fired = any_fired | fire
        if spec.terminate:
            aux = aux._replace(terminated=aux.terminated | any_fired)
        return aux, u, any_fired

    def _apply(self, aux, index, spec, component, t, u, tprev, extra, fire, row, affect=None):
        """Apply one affect on the lanes that fire, and log it."""
        affect = spec.affect if affect is None else affect
        log, p = aux.events, aux.p
        right, q = self.system.lift(lambda th, *a: affect(a[0], th, a[1], a[2]), u, t, extra, p=p)
        right = where_lanes(fire, right, u)
        known = spec.kind == "known"
        at = log.count
        lanes = jnp.broadcast_to
        log = EventLog(
            at + fire,
            put(log.time, at, t, fire),
            put(log.callback, at, jnp.full_like(at, index), fire),
            put(log.component, at, component, fire),
            put(log.tprev, at, tprev, fire),
            put(log.row, at, lanes(row, at.shape), fire),
            put(log.stop, at, aux.stop if known else jnp.full_like(at, -1), fire),
            put(log.left, at, u, fire),
            put(log.right, at, right, fire),
            None if p is None else put(log.params, at, p, fire),
        )
        if spec.terminate and spec.kind == "discrete":
            aux = aux._replace(terminated=aux.terminated | fire)
        if p is not None:
            p = where_lanes(fire, q, p)
        return aux._replace(events=log, p=p), right
