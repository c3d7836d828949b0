"""Slopes are recorded of a single lane, and of no more: the gradients are the same."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems.networks import mlp, wave_mlp

import hybridax as hx

LAYERS, U0 = wave_mlp((2, 20, 2)), jnp.array([[2.0, 0.0], [1.5, 0.4], [0.3, -1.0]])
SWIRL = np.array([[-0.1, -2.0], [2.0, -0.1]])
WALL = hx.ContinuousCallback(lambda u, p, t: u[0], lambda u, p, t: jnp.stack([u[0], -0.5 * u[1]]))
CALLBACKS = {"smooth": None, "events inside steps": WALL}
ROWS = 512


@functools.lru_cache(maxsize=None)
def solve_of(name, method=None):
    def rows(u0, layers):
        prob = hx.ODEProblem(lambda u, p, t: SWIRL @ u**3 + mlp(p, u), u0, (0.0, 1.5), layers, callback=CALLBACKS[name])
        return hx.solve(prob, saveat=np.linspace(0.1, 1.4, 6), rtol=1e-9, atol=1e-9, max_steps=ROWS, sensealg=method).us

    return rows


def loss_of(name, *method):
    return lambda u0, layers: jnp.sum(jnp.nan_to_num(solve_of(name, *method)(u0, layers)) ** 2)


def check(got, expected):
    for g, e in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", CALLBACKS)
def test_one_and_several(name):
    gradient = jax.grad(loss_of(name), (0, 1))
    alone = [jax.jit(gradient)(u0, LAYERS) for u0 in U0]
    check(alone[0], jax.jit(jax.grad(loss_of(name, hx.InterpolatingAdjoint()), (0, 1)))(U0[0], LAYERS))
    check(jax.jit(jax.vmap(gradient, (0, None)))(U0, LAYERS), jax.tree.map(lambda *x: jnp.stack(x), *alone))
    total = lambda u0, layers: jnp.sum(jax.vmap(loss_of(name), (0, None))(u0, layers))
    u0, layers = jax.tree.map(lambda *x: jnp.stack(x), *alone)
    check(jax.jit(jax.grad(total, (0, 1)))(U0, LAYERS), (u0, jax.tree.map(lambda x: jnp.sum(x, 0), layers)))


def test_directions_that_share_a_record():
    reverse = jax.jit(jax.jacrev(solve_of("smooth")))(U0[0], LAYERS)
    forward = jax.jit(jax.jacfwd(solve_of("smooth", hx.ForwardSensitivity())))(U0[0], LAYERS)
    check(reverse, forward)


def test_slopes_of_several_take_no_memory():
    lanes = 64
    gradient = jax.jit(jax.vmap(jax.grad(loss_of("smooth")), (0, None)))
    used = gradient.lower(jnp.ones((lanes, 2)), LAYERS).compile().memory_analysis().temp_size_in_bytes
    assert used < lanes * ROWS * 7 * 2 * 8  # what the slopes alone would take
