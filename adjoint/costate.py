"""The costate equation as a walk backwards in time.

Between events and saved rows the costate obeys

    d lam / dt = -(df/du)' lam,        d mu / dt = -(df/dp)' lam,

integrated from the end to t0 by the same loop as the forward solve. At a saved row lam takes in the row's cotangent; at
an event the jump rule applies. How mu is integrated is told by a `ParameterIntegral`, where u(t) comes from by the walk:
dense output of the record, or the state solved backwards beside lam.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..solvers.buffers import get_row, put, take, where_lanes
from ..solvers.integrate import Arrival, RetCode, Walk
from ..solvers.runge_kutta import Step
from .dense import DenseForward
from .diagnostics import Seen, see_lam, see_state
from .jumps import jump_back
from .parameter_integral import ParameterIntegral
from .replay import Block
from .reverse import Mu, Reverse


class CostateAux(NamedTuple):
    """What the walk carries besides lam."""

    mu: Mu
    p: Array | None
    entry: Array  # (B,), number of stops still ahead
    segment: Array  # (B,), number of events before the present position
    row: Array  # (B,), a row of the record at or after the present position
    u: Array | None  # (B, n), the state there, where it is read off the record
    stops: Array  # (K+1, B), gradients of event times
    bad: Array  # (B,)
    trouble: Array  # (B,), of events; see `Jumped`
    integral: Any
    seen: Seen | None


class Ahead(NamedTuple):
    """The forward state at the stages of a step, whose times alone decide it."""

    t: Array  # (s+1, B)
    u: Array  # (s+1, B, n)
    row: Array  # (s+1, B)
    jacobians: Array | None  # (s+1, B, n, n)


class CostateWalk(Walk):
    """Backwards over the stops of a record. ``y`` is lam, or [lam, u] where ``solves_state``.

    ``compare``: tolerances in whose units a state that is solved is compared with the recorded one.
    """

    def __init__(
        self,
        reverse: Reverse,
        integral: ParameterIntegral,
        solves_state: bool = False,
        checkpoints: bool = True,
        compare: tuple[Array, Array] | None = None,
    ):
        self.reverse, self.integral = reverse, integral
        self.solves_state, self.checkpoints, self.compare = solves_state, checkpoints, compare
        self.n = reverse.args.u0.shape[-1]
        self.dense = None if solves_state else DenseForward(reverse)
        schedule = reverse.args.schedule
        self.direction = jnp.where(schedule.t1 >= schedule.t0, 1, -1).astype(schedule.t0.dtype)
        self.order, self.times, self.count = self._stops()
        self.floor = schedule.t0  # where the walk ends

    def within(self, block: Block) -> CostateWalk:
        """The part of this walk that lies in the rows of a block."""
        walk = copy.copy(self)
        walk.dense = DenseForward(self.reverse, block)
        walk.floor = block.t[0]
        return walk

    def _stops(self) -> tuple[Array, Array, Array]:
        """Saves and events in the order of time: entries ``(R, B)`` (saves first, then events), times, and count."""
        saves, log = self.reverse.result.saves, self.reverse.result.events
        slots, events = saves.t.shape[0], log.time.shape[0]
        i = jnp.arange(max(slots, events), dtype=np.int32)[:, None]
        unused = np.int32(2**30)
        inner = (i[:slots] < saves.count) & (saves.row >= 0)
        key_saves = jnp.where(inner, 2 * saves.segment, unused)
        key_events = jnp.where(i[:events] < log.count, jnp.broadcast_to(2 * i[:events] + 1, log.time.shape), unused)
        keys = jnp.concatenate([key_saves, key_events])
        times = jnp.concatenate([saves.t, log.time])
        if events:
            order = jnp.argsort(keys, axis=0, stable=True).astype(np.int32)
        else:
            # saves are in order already; those at the start come first and are left out
            first = jnp.sum((saves.row < 0) & (i[:slots] < saves.count), 0)
            order = jnp.minimum(i[:slots] + first, max(slots - 1, 0)).astype(np.int32)
        count = jnp.sum(keys < unused, 0).astype(np.int32)
        return order, jnp.take_along_axis(times, order, 0), count

    # -- the equation

    def rhs(self, aux: CostateAux, t: Array, y: Array) -> Array:
        return self._slope(aux, t, y[:, : self.n], y[:, self.n :] if aux.u is None else aux.u)

    def _slope(self, aux: CostateAux, t: Array, lam: Array, u: Array) -> Array:
        r = self.reverse
        du, back = r.vjp(lambda th, u_, t_: r.system.rhs(u_, th, t_), (u, t), aux.p, params=False)
        dlam = -back(lam)[1][0]
        return jnp.concatenate([dlam, du], -1) if self.solves_state else dlam

    def look_ahead(self, aux: CostateAux, t: Array, h: Array) -> Ahead | None:
        if self.dense is None:
            return None
        # stages at the same time have the same state
        c, place = np.unique(self.reverse.tableau.c, return_inverse=True)
        times = t + jnp.asarray(c, t.dtype)[:, None] * h
        rows = self.dense.rows(times, aux.segment, aux.row)
        u = self.dense.at(times, rows)
        jacobians = None
        if self.reverse.small:
            # the slope at the start is known: no stage asks for the Jacobian there
            some, stage = np.unique(place[1:], return_inverse=True)
            jacobians = self.reverse.jacobians(u[some], times[some], aux.p)[np.append(0, stage)]
        return Ahead(times[place], u[place], rows[place], jacobians)

    def stage(self, aux: CostateAux, ahead: Ahead | None, i: int | Array, t: Array, y: Array) -> Array:
        if ahead is None:
            return self.rhs(aux, t, y)
        if ahead.jacobians is None:
            return self._slope(aux, t, y, get_row(ahead.u, i))
        return -jnp.sum(y[:, :, None] * get_row(ahead.jacobians, i), 1)

    def extra_error(self, aux: CostateAux, step: Step):
        return self.integral.error(self, aux, step)

    def after_step(self, aux: CostateAux, step: Step, accepted, landed, theta, row, extra) -> CostateAux:
        aux = self.integral.add(self, aux, step, accepted, extra)
        aux = self.see(aux, step.u1, accepted)
        if step.ahead is not None and aux.u is not None:
            u = where_lanes(accepted, step.ahead.u[-1], aux.u)
            aux = aux._replace(row=jnp.where(accepted, step.ahead.row[-1], aux.row), u=u)
        return aux

    def full(self, aux: CostateAux, landed: Array) -> Array | None:
        full, log = self.integral.full(aux), self.reverse.result.events
        if full is None or aux.p is None or not log.time.shape[0]:
            return full
        # an event that writes parameters needs all of mu
        ahead = self.direction * take(log.time, aux.segment - 1) >= self.direction * self.next_stop(aux.entry)
        return full | jnp.any(landed & (aux.segment > 0) & ahead)

    def rest(self, aux: CostateAux) -> CostateAux:
        return self.integral.finish(self, aux)

    def pending(self, aux: CostateAux) -> Array | bool:
        return self.integral.pending(aux)

    # -- stops

    def next_stop(self, entry: Array) -> Array:
        if self.order.shape[0] == 0:
            return self.floor
        stop = take(self.times, entry - 1)
        ahead = (entry > 0) & (self.direction * stop > self.direction * self.floor)
        return jnp.where(ahead, stop, self.floor)

    def arrive(self, aux: CostateAux, t: Array, y: Array, tprev: Array, landed, fired, row) -> Arrival:
        if self.order.shape[0]:
            aux, y = lax.while_loop(
                lambda c: jnp.any(self._pending(c[0], t, landed)),
                lambda c: self._pass(c[0], t, c[1], self._pending(c[0], t, landed)),
                (aux, y),
            )
        done = landed & (self.direction * t <= self.direction * self.floor)
        status = jnp.where(done, RetCode.Success, RetCode.Running)
        return Arrival(aux, y, self.next_stop(aux.entry), landed, status)

    def _pending(self, aux: CostateAux, t: Array, on: Array) -> Array:
        ahead = self.direction * take(self.times, aux.entry - 1) >= self.direction * t
        return on & (aux.entry > 0) & ahead

    def _pass(self, aux: CostateAux, t: Array, y: Array, on: Array) -> tuple[CostateAux, Array]:
        """Pass one stop on the lanes ``on``."""
        r = self.reverse
        saves = r.result.saves
        slots = saves.t.shape[0]
        entry = take(self.order, aux.entry - 1)
        is_save = on & (entry < slots)
        lam, u = y[:, : self.n], y[:, self.n :]
        if slots:
            aux = self.see_state(aux, u, saves.u, entry, is_save)
            lam = lam + where_lanes(is_save, take(r.cotangents.saves, entry), jnp.zeros_like(lam))
            if self.solves_state and self.checkpoints:
                u = where_lanes(is_save, take(saves.u, entry), u)
        is_event = on & ~is_save
        aux = aux._replace(entry=aux.entry - on)
        if r.result.events.time.shape[0]:
            aux, lam, u = lax.cond(
                jnp.any(is_event),
                lambda a, x, y: self._pass_event(a, x, y, entry - slots, is_event),
                lambda a, x, y: (a, x, y),
                aux,
                lam,
                u,
            )
        return self.see(aux, lam, on), jnp.concatenate([lam, u], -1)

    def _pass_event(self, aux: CostateAux, lam: Array, u: Array, event: Array, on: Array):
        r = self.reverse
        aux = self.see_state(aux, u, r.result.events.right, event, on)
        jumped = jump_back(r, event, on, lam, aux.mu, aux.p)
        aux = aux._replace(
            mu=jumped.mu,
            p=jumped.p,
            segment=aux.segment - on,
            stops=put(aux.stops, jumped.stop, jumped.sigma, jumped.stop >= 0),
            trouble=jnp.maximum(aux.trouble, jumped.trouble),
        )
        left = take(r.result.events.left, event)
        if aux.u is None:
            return aux, jumped.lam, where_lanes(on, left, u)
        return aux._replace(u=where_lanes(on, left, aux.u)), jumped.lam, u

    # -- what is watched

    def see(self, aux: CostateAux, y: Array, on: Array) -> CostateAux:
        return aux if aux.seen is None else aux._replace(seen=see_lam(aux.seen, y[:, : self.reverse.components], on))

    def see_state(self, aux: CostateAux, u: Array, recorded: Array, index: Array, on: Array) -> CostateAux:
        """Compare ``u`` with row ``index`` of ``recorded``."""
        if self.compare is None:
            return aux
        n = self.reverse.components
        return aux._replace(seen=see_state(aux.seen, u[:, :n], take(recorded, index)[:, :n], on, *self.compare))
