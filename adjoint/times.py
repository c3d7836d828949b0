"""Gradients of times.

A time that only bounds the solve or marks a saved row has a gradient in closed form: with products real parts,

    dL/dt0 = -lam(t0) . f(u0),    dL/ds_j = l_j . f(u(s_j)),    dL/dt1 = l_end . f(u(t1)),

and the gradient of an event's own time is the sigma of the jump rule.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..solvers.buffers import take
from .jumps import dot
from .reverse import Reverse, TimeCotangents


def finish_times(reverse: Reverse, lam: Array, stops: Array) -> TimeCotangents:
    """All time cotangents, given ``lam`` at t0 and the sigmas of the events ``stops (K+1, B)``."""
    schedule, result, cotangents = reverse.args.schedule, reverse.result, reverse.cotangents
    count = schedule.saves.shape[1]
    if not reverse.need_times:
        return TimeCotangents(jnp.zeros_like(schedule.t0), stops, jnp.zeros_like(schedule.saves.T))
    p0 = reverse.lane_system.first_params()
    t0 = -dot(lam, reverse.rhs(schedule.t0, reverse.args.u0, p0))
    outcome = result.outcome
    bars = cotangents.end
    if reverse.options.everystep:
        # the row of the last step moves with the end of the span, too
        last = (result.saves.t == outcome.t) & (result.saves.segment == result.events.count)
        last = last & (jnp.arange(last.shape[0], dtype=np.int32)[:, None] < result.saves.count)
        bars = bars + jnp.sum(jnp.where(last[..., None], cotangents.saves, 0), 0)
    end = dot(bars, reverse.rhs(outcome.t, outcome.u, outcome.params)) + cotangents.end_time
    landed = outcome.t == schedule.t1
    stops = stops.at[-1].set(jnp.where(landed, end, 0.0))
    if count == 0:
        return TimeCotangents(t0, stops, jnp.zeros_like(schedule.saves.T))
    saves = result.saves

    def slope(t, u, segment):
        p = outcome.params
        if p is not None and result.events.params is not None and result.events.params.shape[0]:
            before = take(result.events.params, segment)
            p = jnp.where((segment < result.events.count)[:, None], before, p)
        return reverse.rhs(t, u, p)

    slopes = jax.vmap(slope)(schedule.saves.T, saves.u[:count], saves.segment[:count])
    bars = jnp.sum(cotangents.saves[:count] * slopes, -1).real
    used = jnp.arange(count, dtype=np.int32)[:, None] < saves.count[None, :]
    return TimeCotangents(t0, stops, jnp.where(used, bars, 0.0))
