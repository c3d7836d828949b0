"""The Brusselator on a periodic grid of 8 x 8 cells, with four parameters of its own in every cell.

    du/dt = b + u^2 v - (a + 1) u + d_u lap u,   dv/dt = a u - u^2 v + d_v lap v

a, b and the diffusivities d_u, d_v are fields ``(8, 8)``: 256 parameters.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from comparison import OURS, Entry, Problem, against

import hybridax as hx

from . import with_diffrax as peer

CELLS, TOLERANCE, END = 8, 1e-6, 6.0
FIELDS = np.array([3.4, 1.0, 0.02 * CELLS**2, 0.01 * CELLS**2], np.float32)


def f(u, p, t):
    a, b, *diffusivities = p
    u, v = u
    lap = lambda x: sum(jnp.roll(x, s, axis) for s in (1, -1) for axis in (0, 1)) - 4 * x  # noqa: E731
    du = b + u * u * v - (a + 1) * u + diffusivities[0] * lap(u)
    dv = a * u - u * u * v + diffusivities[1] * lap(v)
    return jnp.stack([du, dv])


def brusselator() -> Problem:
    x = (np.arange(CELLS) + 0.5) / CELLS
    u0 = jnp.asarray(np.stack(np.meshgrid(22 * (x * (1 - x)) ** 1.5, 27 * (x * (1 - x)) ** 1.5)), jnp.float32)
    vary = 1 + 0.1 * jax.random.normal(jax.random.key(4), (len(FIELDS), CELLS, CELLS))
    params = FIELDS[:, None, None] * vary
    ts = np.linspace(0.0, END, 21)

    def ours(p):
        options = dict(saveat=ts, rtol=TOLERANCE, atol=TOLERANCE)
        return jnp.mean(hx.solve(hx.ODEProblem(f, u0, (0.0, END), p), **options).us ** 2)

    def theirs(p):
        return jnp.mean(peer.rows(f, u0, 0.0, END, p, TOLERANCE, ts=jnp.asarray(ts)) ** 2)

    own, direct = Entry(OURS, "DiscreteAdjoint", ours), peer.entry(theirs)
    about = f"2 x 8 x 8 states, 256 parameters, 21 saved rows over (0, {END:g}), tolerance 1e-6, float32"
    return Problem("Brusselator 8x8", about, params, (own, direct), against(own, direct, 2.0))
