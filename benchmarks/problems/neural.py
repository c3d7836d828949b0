"""Neural ODEs without events: the spiral at two widths, and many lanes of a larger state."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from comparison import OURS, Entry, Goal, Problem, against

import hybridax as hx

from . import with_diffrax as peer
from .networks import apply, network

TOLERANCE = 1e-6
SWIRL = np.array([[-0.1, -2.0], [2.0, -0.1]], np.float32)


def spiral(sizes=(2, 50, 2)) -> Problem:
    """The cubic spiral with a network beside it."""
    u0, ts = jnp.array([2.0, 0.0]), np.linspace(0.0, 25.0, 101)
    params = network(sizes, jax.random.key(0), 0.15)
    f = lambda u, p, t: SWIRL @ u**3 + apply(p, u)  # noqa: E731
    wide = max(sizes) > 100

    def ours(method, p):
        prob = hx.ODEProblem(f, u0, (0.0, 25.0), p)
        return jnp.sum(hx.solve(prob, saveat=ts, rtol=TOLERANCE, atol=TOLERANCE, sensealg=method).us ** 2)

    def theirs(backsolve, p):
        return jnp.sum(peer.rows(f, u0, 0.0, 25.0, p, TOLERANCE, ts=jnp.asarray(ts), backsolve=backsolve) ** 2)

    own = Entry(OURS, "DiscreteAdjoint", partial(ours, hx.DiscreteAdjoint()))
    continuous = [
        Entry(OURS, type(method).__name__, partial(ours, method), forward=False, tolerance=5e-3)
        for method in (hx.InterpolatingAdjoint(), hx.QuadratureAdjoint())
    ]
    direct = peer.entry(partial(theirs, False), tolerance=1e-3)
    backsolve = peer.entry(partial(theirs, True), peer.BACKSOLVE, forward=False, tolerance=5e-3)
    goals = against(own, direct, 2.5 if wide else 4.0)
    for entry in continuous:
        goals += against(entry, backsolve, 20.0 if wide else 4.0, forward=False)
    if not wide:
        goals = (Goal("overhead", own.key, own.key, 2.0), *goals)
    return Problem(
        "spiral " + "-".join(map(str, sizes)),
        "cubic spiral and a network, 101 saved rows over (0, 25), tolerance 1e-6, float32",
        params,
        (own, *continuous, direct, backsolve),
        goals,
    )


def lanes(states=64, hidden=155, count=256) -> Problem:
    """``count`` initial states of one network's dynamics, each lane with its own steps."""
    ts = np.linspace(0.0, 2.0, 11)
    params = network((states, hidden, states), jax.random.key(2), 2.0)
    starts = jax.random.normal(jax.random.key(3), (count, states))
    f = lambda u, p, t: apply(p, u) - 0.5 * u  # noqa: E731

    def ours(p):
        options = dict(saveat=ts, rtol=TOLERANCE, atol=TOLERANCE)
        return jnp.mean(jax.vmap(lambda u0: hx.solve(hx.ODEProblem(f, u0, (0.0, 2.0), p), **options).us)(starts) ** 2)

    def theirs(p):
        one = lambda u0: peer.rows(f, u0, 0.0, 2.0, p, TOLERANCE, ts=jnp.asarray(ts))  # noqa: E731
        return jnp.mean(jax.vmap(one)(starts) ** 2)

    own, direct = Entry(OURS, "DiscreteAdjoint", ours), peer.entry(theirs)
    size = sum(x.size for x in jax.tree.leaves(params))
    return Problem(
        f"neural ODE x {count}",
        f"{states} states, {size} parameters, {count} lanes, 11 saved rows over (0, 2), tolerance 1e-6, float32",
        params,
        (own, direct),
        against(own, direct, 2.0),
    )
