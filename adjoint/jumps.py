"""The jump rule: how cotangents pass an event. One rule serves every method.

At an event at time tau with condition c(u, p, t), state map u+ = w(u-, p-, t), parameter map p+ = P(u-, p-, t),
right-hand side limits f- and f+, and cotangents l_left, l_right of the saved limits (lam+ includes l_right):

    D     = c_t + c_u . f-
    sigma = lam+ . (w_u f- + w_t - f+) + mu+ . (P_u f- + P_t) + l_right . f+ + l_left . f- + (cotangent of tau itself)
    lam-  = w_u' lam+ + P_u' mu+ + l_left - sigma c_u' / D
    mu-   = P_p' mu+ + w_p' lam+          - sigma c_p' / D

For periodic, preset and discrete events the sigma terms drop out; sigma is then the gradient of the event's own time.
The terms of a running cost are those of one more state component. Products are plain, without conjugation (JAX's
convention for complex cotangents); where a time is involved, their real part.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..solvers.buffers import take, where_lanes
from ..solvers.events import Conditions
from .reverse import Mu, Reverse

GRAZING = 1e-8  # |D| below this fraction of the size of its terms


class Jumped(NamedTuple):
    """Cotangents just before an event, and what the event says of times."""

    lam: Array  # (B, n)
    mu: Mu
    p: Array | None  # packed parameters before the event
    stop: Array  # (B,), which stop of the schedule it was, -1 for none
    sigma: Array  # (B,), gradient of the event's time
    grazing: Array  # (B,)


def dot(a: Array, b: Array) -> Array:
    """``Re sum_i a_i b_i`` over the last axis."""
    return jnp.sum(a * b, -1).real


def jump_back(reverse: Reverse, event: Array, on: Array, lam: Array, mu: Mu, p: Array | None) -> Jumped:
    """Carry ``lam, mu`` from just after event ``event (B,)`` to just before it, on the lanes ``on``."""
    log, cotangents, system = reverse.result.events, reverse.cotangents, reverse.system
    u0, t0 = reverse.args.u0, reverse.args.schedule.t0

    def at(buffer, other):
        return where_lanes(on, take(buffer, event), other)

    t, left, right = at(log.time, t0), at(log.left, u0), at(log.right, u0)
    callback, component = at(log.callback, jnp.full_like(event, -1)), take(log.component, event)
    stop = at(log.stop, jnp.full_like(event, -1))
    after, lam_plus = lam, lam + at(cotangents.right, jnp.zeros_like(lam))
    p_left = None if p is None or log.params is None else where_lanes(on, take(log.params, event), p)
    timed = reverse.need_times or system.has_roots
    sigma = at(cotangents.time, jnp.zeros_like(t))
    if timed:
        sigma = sigma - dot(after, reverse.rhs(t, right, p))

    lam_left = at(cotangents.left, jnp.zeros_like(lam))
    packed = mu.packed
    for index, spec in enumerate(system.events):
        for affect, fire in _variants(spec, on & (callback == index), component):
            extra = take(log.tprev, event) if spec.kind == "discrete" else t
            if spec.kind == "continuous":
                extra = jnp.where(component < 0, -1 - component, component)
            _, pull = reverse.vjp(
                lambda th, u, s, x, affect=affect: affect(u, th, s, x), (left, t, extra), p_left
            )
            bar = where_lanes(fire, lam_plus, jnp.zeros_like(lam))
            bar_p = None if packed is None else where_lanes(fire, packed, jnp.zeros_like(packed))
            dmu, (du, dt, _) = pull((bar, bar_p))
            lam_left = lam_left + du
            sigma = sigma + dt
            leaves = tuple(map(jnp.add, mu.leaves, dmu.leaves))
            packed = None if packed is None or dmu.packed is None else where_lanes(fire, dmu.packed, packed)
            mu = Mu(leaves, packed)
    grazing = jnp.zeros_like(on)
    if timed:
        slope = reverse.rhs(t, left, p_left)
        sigma = sigma + dot(lam_left, slope)
        if system.has_roots:
            lam_left, mu, grazing = _through_root(
                reverse, callback, component, left, t, p_left, slope, sigma, lam_left, mu
            )
    lam = where_lanes(on, lam_left, lam)
    return Jumped(lam, mu, p_left, jnp.where(on, stop, -1), jnp.where(on, sigma, 0.0), grazing & on)


def _variants(spec, fire: Array, component: Array):
    if spec.kind != "continuous":
        yield spec.affect, fire
        return
    if spec.affect_up:
        yield spec.affect, fire & (component >= 0)
    if spec.affect_neg is not None:
        yield spec.affect_neg, fire & (component < 0)


def _through_root(reverse, callback, component, left, t, p, slope, sigma, lam, mu):
    """The sigma / D terms, on the lanes whose event was a root."""
    conditions = Conditions(reverse.lane_system)
    component = jnp.where(component < 0, -1 - component, component)
    is_root, column = jnp.zeros_like(callback, bool), jnp.zeros_like(callback)
    for index, spec in enumerate(reverse.system.events):
        if spec.kind == "continuous":
            here = callback == index
            is_root = is_root | here
            column = jnp.where(here, conditions.offsets[id(spec)] + component, column)
    one_hot = (jnp.arange(conditions.count, dtype=np.int32)[None, :] == column[:, None]) & is_root[:, None]
    _, pull = reverse.vjp(lambda th, u, s: conditions._values(th, u, s), (left, t), p)
    one = one_hot.astype(t.dtype)
    _, (c_u, c_t) = pull(one)
    terms = jnp.concatenate([c_t[:, None], (c_u * slope).real], 1)
    d = jnp.sum(terms, 1)
    grazing = is_root & (jnp.abs(d) <= GRAZING * jnp.sum(jnp.abs(terms), 1))
    ratio = jnp.where(is_root, sigma / jnp.where(is_root, d, 1.0), 0.0)
    dmu, (du, _) = pull(-one * ratio[:, None])
    packed = None if mu.packed is None else mu.packed + dmu.packed
    return lam + du, Mu(tuple(map(jnp.add, mu.leaves, dmu.leaves)), packed), grazing
