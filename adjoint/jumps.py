"""The jump rule: how cotangents pass an event. One rule serves every method.

At an event at time tau with condition c(u, p, t), state map u+ = w(u-, p-, t), parameter map p+ = P(u-, p-, t),
right-hand side limits f- and f+, and cotangents l_left, l_right of the saved limits (lam+ includes l_right):

    D     = c_t + c_u . f-
    sigma = lam+ . (w_u f- + w_t - f+) + mu+ . (P_u f- + P_t) + l_right . f+ + l_left . f- + (cotangent of tau itself)
    lam-  = w_u' lam+ + P_u' mu+ + l_left - sigma c_u' / D
    mu-   = P_p' mu+ + w_p' lam+          - sigma c_p' / D

At an event that ends the solve there is no f+: nothing of what follows moves with its time.
For periodic, preset and discrete events the sigma terms drop out; sigma is then the gradient of the event's own time.
The terms of a running cost g are those of one more state component, u_n' = g: its cotangent is continuous, and brings
g- minus g+ into sigma. Products are plain, without conjugation (JAX's convention for complex cotangents); where a time is
involved, their real part. Two events have no such derivative, and are reported: see `trouble` of `Jumped`.
"""

from __future__ import annotations

from typing import Callable, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..solvers.buffers import take, where_lanes
from ..solvers.events import GRAZING, Conditions
from ..solvers.integrate import RetCode
from ..solvers.system import EventSpec
from .reverse import Mu, Reverse


class Jumped(NamedTuple):
    """Cotangents just before an event, and what the event says of times."""

    lam: Array  # (B, n)
    mu: Mu
    p: Array | None  # packed parameters before the event
    stop: Array  # (B,), which stop of the schedule it was, -1 for none
    sigma: Array  # (B,), gradient of the event's time
    trouble: Array  # (B,), 0, or 1 + 2 event if it grazes, 2 + 2 event if its time has no gradient but needs one


class Limits(NamedTuple):
    """An event as the record holds it, and the cotangents of what was saved of it."""

    t: Array  # (B,)
    left: Array  # (B, n)
    right: Array  # (B, n)
    l_left: Array  # (B, n)
    l_right: Array  # (B, n)
    l_time: Array  # (B,)


def dot(a: Array, b: Array) -> Array:
    """``Re sum_i a_i b_i`` over the last axis."""
    return jnp.sum(a * b, -1).real


def jump_back(reverse: Reverse, event: Array, on: Array, lam: Array, mu: Mu, p: Array | None) -> Jumped:
    """Carry ``lam, mu`` from just after event ``event (B,)`` to just before it, on the lanes ``on``."""
    log, system = reverse.result.events, reverse.system
    here = event_limits(reverse, event, on)
    callback = where_lanes(on, take(log.callback, event), jnp.full_like(event, -1))
    stop = where_lanes(on, take(log.stop, event), jnp.full_like(event, -1))
    component, tprev = take(log.component, event), take(log.tprev, event)
    p_left = None if p is None or log.params is None else where_lanes(on, take(log.params, event), p)
    timed = reverse.need_times or system.has_roots

    sigma = here.l_time
    if timed:
        # lam+ . f+ less l_right . f+; nothing follows an event that ends the solve
        outcome = reverse.result.outcome
        last = (event == log.count - 1) & (outcome.status == RetCode.Terminated)
        sigma = sigma - jnp.where(last, 0.0, dot(lam, slope(reverse, here.t, here.right, p)))
    lam_plus, lam_left, packed = lam + here.l_right, here.l_left, mu.packed
    timeless = jnp.zeros_like(on)
    for index, spec in enumerate(system.events):
        if spec.kind == "discrete":
            timeless = timeless | ((callback == index) & (here.l_time != 0))
        for affect, fire in _variants(spec, on & (callback == index), component):
            extra = tprev if spec.kind == "discrete" else here.t
            if spec.kind == "continuous":
                extra = jnp.where(component < 0, -1 - component, component)
            _, pull = reverse.vjp(maps(affect), (here.left, here.t, extra), p_left)
            bar = where_lanes(fire, lam_plus, jnp.zeros_like(lam))
            bar_p = None if packed is None else where_lanes(fire, packed, jnp.zeros_like(packed))
            dmu, (du, dt, _) = pull((bar, bar_p))
            lam_left = lam_left + du  # w_u' lam+ + P_u' mu+
            sigma = sigma + dt  # lam+ . w_t + mu+ . P_t
            leaves = tuple(map(jnp.add, mu.leaves, dmu.leaves))
            packed = None if packed is None or dmu.packed is None else where_lanes(fire, dmu.packed, packed)
            mu = Mu(leaves, packed)
    grazing = jnp.zeros_like(on)
    if timed:
        velocity = slope(reverse, here.t, here.left, p_left)
        sigma = sigma + dot(lam_left, velocity)  # w_u f-, P_u f- and l_left . f- at once
        if system.has_roots:
            root = Root(reverse, callback, component, here, p_left, velocity)
            lam_left, mu = root.pass_back(sigma, lam_left, mu)
            grazing = root.grazes(tprev)
    lam = where_lanes(on, lam_left, lam)
    trouble = jnp.where(on & grazing, 1 + 2 * event, jnp.where(on & timeless, 2 + 2 * event, 0))
    sigma = jnp.where(on, sigma, 0.0)
    return Jumped(lam, mu, p_left, jnp.where(on, stop, -1), sigma, trouble.astype(np.int32))


def event_limits(reverse: Reverse, event: Array, on: Array) -> Limits:
    """What the record and the cotangents hold of event ``event (B,)``; the start and zeros on other lanes."""
    log, bars = reverse.result.events, reverse.cotangents
    u0, t0 = reverse.args.u0, reverse.args.schedule.t0

    def at(buffer, other):
        return where_lanes(on, take(buffer, event), other)

    none = jnp.zeros_like(u0)
    t, left, right = at(log.time, t0), at(log.left, u0), at(log.right, u0)
    return Limits(t, left, right, at(bars.left, none), at(bars.right, none), at(bars.time, jnp.zeros_like(t)))


def slope(reverse: Reverse, t: Array, u: Array, p: Array | None) -> Array:
    """f- or f+, ``(B, n)``."""
    return reverse.rhs(t, u, p)


def maps(affect: Callable) -> Callable:
    """w and P as one function of ``(theta, u, t, extra)``."""
    return lambda theta, u, t, extra: affect(u, theta, t, extra)


def surface(conditions: Conditions) -> Callable:
    """All conditions as one function of ``(theta, u, t)``."""
    return conditions._values


def _variants(spec: EventSpec, fire: Array, component: Array):
    if spec.kind != "continuous":
        yield spec.affect, fire
        return
    if spec.affect_up:
        yield spec.affect, fire & (component >= 0)
    if spec.affect_neg is not None:
        yield spec.affect_neg, fire & (component < 0)


class Root:
    """The condition whose root the event was: its derivatives at the left limit, and the terms in sigma / D."""

    def __init__(self, reverse: Reverse, callback, component, here: Limits, p: Array | None, velocity: Array):
        self.reverse, self.here, self.p, self.velocity = reverse, here, p, velocity
        conditions = Conditions(reverse.lane_system)
        component = jnp.where(component < 0, -1 - component, component)
        is_root, column = jnp.zeros_like(callback, bool), jnp.zeros_like(callback)
        for index, spec in enumerate(reverse.system.events):
            if spec.kind == "continuous":
                is_root = is_root | (callback == index)
                column = jnp.where(callback == index, conditions.offsets[id(spec)] + component, column)
        self.is_root = is_root
        one_hot = (jnp.arange(conditions.count, dtype=np.int32)[None, :] == column[:, None]) & is_root[:, None]
        self.one = one_hot.astype(here.t.dtype)
        _, self.pull = reverse.vjp(surface(conditions), (here.left, here.t), p)
        _, (self.c_u, c_t) = self.pull(self.one)
        self.terms = jnp.concatenate([c_t[:, None], (self.c_u * velocity).real], 1)
        self.d = jnp.sum(self.terms, 1)

    def pass_back(self, sigma: Array, lam: Array, mu: Mu) -> tuple[Array, Mu]:
        """``lam - sigma c_u' / D`` and ``mu - sigma c_p' / D``, on the lanes whose event was a root."""
        ratio = jnp.where(self.is_root, sigma / jnp.where(self.is_root, self.d, 1.0), 0.0)
        dmu, (du, _) = self.pull(-self.one * ratio[:, None])
        assert dmu is not None
        return lam + du, self.reverse.add(mu, dmu)

    def grazes(self, tprev: Array) -> Array:
        """Whether D is as good as zero, against the terms it has here and those it had a step before.

        At the top of a parabola the only term, the velocity, is itself near zero, and only what it was a step earlier
        tells that it is small. That step is taken as a straight line.
        """
        here = self.here
        before = here.left + (tprev - here.t)[:, None] * self.velocity
        earlier = (self.c_u * self.reverse.rhs(tprev, before, self.p)).real
        size = jnp.sum(jnp.abs(self.terms), 1)
        size = jnp.fmax(size, jnp.abs(self.terms[:, 0]) + jnp.sum(jnp.abs(earlier), 1))
        return self.is_root & (jnp.abs(self.d) <= GRAZING * np.sqrt(np.finfo(size.dtype).eps) * size)
