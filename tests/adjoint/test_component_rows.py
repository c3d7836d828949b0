"""Rows of a light system are transposed number by number, to the gradient that the general sweep gives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridax.adjoint import assemble, programs
from hybridax.solvers import tiles

import hybridax as hx

TS = np.linspace(0.0, 2.0, 9)


def f(u, p, t):
    a, b = p["rates"], p["force"]
    return jnp.stack([a[0] * u[0] - a[1] * u[0] * u[1] + b * jnp.sin(3 * t), a[1] * u[0] * u[1] - a[2] * u[1]])


def kick(u, p, t):
    return u + p["rates"][:2] * 0.1


def above(u, p, t):
    return u[1] - 0.92


SCENES = {
    "rows and steps": {},
    "jumps": dict(callback=hx.PeriodicCallback(kick, 0.3, initial_affect=True, save_positions=(True, True))),
    "cut steps": dict(callback=hx.ContinuousCallback(above, lambda u, p, t: u * p["rates"][2]), max_events=16),
    "checkpoints": dict(sensealg=hx.DiscreteAdjoint(checkpoints=8)),
}
SHARED = {"p shared": (0, None), "p of each lane": (0, 0), "p in part": (None, {"rates": None, "force": 0})}
U0 = jnp.array([[1.0, 0.5], [0.8, 0.9], [1.3, 0.2]])
RATES, FORCE = jnp.array([[0.9, 1.1, 0.7], [1.0, 0.8, 0.6], [0.7, 1.2, 0.9]]), jnp.array([0.3, 0.1, 0.2])


def gradient(options, axes):
    u0 = U0 if axes[0] == 0 else U0[0]
    inner = axes[1] if isinstance(axes[1], dict) else {"rates": axes[1], "force": axes[1]}
    p = {"rates": RATES if inner["rates"] == 0 else RATES[0], "force": FORCE if inner["force"] == 0 else FORCE[0]}

    def loss(u0, p):
        one = lambda u, q: hx.solve(hx.ODEProblem(f, u, (0.0, 2.0), q), saveat=TS, rtol=1e-8, atol=1e-8, **options)
        us = jax.vmap(lambda *x: one(*x).us, axes)(u0, p)
        return jnp.sum(jnp.where(jnp.isnan(us), 0.0, us) ** 2 * jnp.linspace(0.5, 1.0, us.shape[1])[None, :, None])

    return jax.jit(jax.grad(loss, (0, 1)))(u0, p)


CELLS = [*((s, "p shared") for s in SCENES), ("rows and steps", "p of each lane"), ("jumps", "p in part")]


@pytest.mark.parametrize("scene, shared", CELLS)
def test_as_the_general_sweep(scene, shared, monkeypatch):
    got = gradient(SCENES[scene], SHARED[shared])
    monkeypatch.setattr(assemble, "is_light", lambda _: False)
    programs.clear_cache()
    expected = gradient(SCENES[scene], SHARED[shared])
    programs.clear_cache()
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-12 * float(jnp.max(jnp.abs(y))))


def test_complex_states():
    """u' = p u with complex u and p: the holomorphic derivative of u(1), as JAX pulls it back."""
    p, u0 = jnp.array([0.3 + 0.4j]), jnp.array([1.0 - 0.5j])
    end = lambda p: hx.solve(hx.ODEProblem(lambda u, p, t: p * u, u0, (0.0, 1.0), p), rtol=1e-11, atol=1e-11).us[-1]
    (got,) = jax.vjp(end, p)[1](jnp.ones(1, complex))
    np.testing.assert_allclose(got, u0 * jnp.exp(p), rtol=1e-9)


@functools.lru_cache
def _instructions(lanes):
    def loss(p):
        one = lambda q: hx.solve(hx.ODEProblem(f, U0[0], (0.0, 2.0), {"rates": q, "force": 0.1}), saveat=TS).us
        return jnp.sum(jax.vmap(one)(p))

    return len(jax.jit(jax.grad(loss)).lower(jnp.ones((lanes, 3))).as_text().splitlines())


def test_the_program_does_not_grow_with_the_lanes():
    """Beyond one tile of the largest size, where there are tiles."""
    most = tiles.TILES * tiles.LANES[1]
    assert _instructions(2 * tiles.LANES[1]) <= _instructions(most) == _instructions(3 * most - 5)
