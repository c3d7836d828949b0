"""Many lanes of a small system, without events a tile at a time: the values of lanes computed one by one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridax.solvers import one_kernel, tiles

import hybridax as hx

LANES = 2 * tiles.LANES[1] + 6  # several tiles, which overlap
U0 = jnp.stack([jnp.linspace(0.5, 1.5, LANES), jnp.linspace(-0.3, 0.4, LANES)], 1)
RATES, SHARED = jnp.linspace(0.2, 1.4, LANES), jnp.array([9.0, 0.8])
TIMES = jnp.linspace(0.1, 1.4, 9)
OPTIONS = dict(rtol=1e-9, atol=1e-9, max_steps=512)


def falling(u, p, t):
    return jnp.stack([u[1], -p[1][0] - p[0] * u[1]])


def turning(u, p, t):
    return jnp.stack([p[1][1] * u[1] - p[0] * u[0], -jnp.sin(u[0]) * p[1][0] + jnp.cos(t)])


BOUNCE = hx.ContinuousCallback(lambda u, p, t: u[0], lambda u, p, t: jnp.stack([u[0], -p[1][1] * u[1]]))
DOSES = hx.PeriodicCallback(lambda u, p, t: u.at[0].add(0.1 * p[0]), 0.4)
PROBLEMS = {"bouncing": (falling, BOUNCE), "doses": (turning, DOSES), "smooth": (turning, None)}


@functools.lru_cache(maxsize=None)
def loss_of(name):
    rhs, callback = PROBLEMS[name]

    def loss(u0, rate, shared):
        prob = hx.ODEProblem(rhs, u0, (0.0, 1.5), (rate, shared), callback=callback)
        us = hx.solve(prob, saveat=TIMES, **OPTIONS).us
        return jnp.sum(jnp.where(jnp.isfinite(us), us, 0) ** 2)

    return loss


@functools.lru_cache(maxsize=None)
def one_by_one(name):
    """Of every lane, its gradient by all three, each from a solve of its own."""
    gradient = jax.jit(jax.grad(loss_of(name), (0, 1, 2)))
    lanes = [gradient(u0, rate, SHARED) for u0, rate in zip(U0, RATES)]
    return jax.tree.map(lambda *x: jnp.stack(x), *lanes)


def check(got, expected):
    for g, e in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", PROBLEMS)
def test_gradient_of_a_sum(name):
    def total(u0, rate, shared):
        return jnp.sum(jax.vmap(loss_of(name), (0, 0, None))(u0, rate, shared))

    u0, rate, shared = one_by_one(name)
    check(jax.jit(jax.grad(total, (0, 1, 2)))(U0, RATES, SHARED), (u0, rate, jnp.sum(shared, 0)))


@pytest.mark.parametrize("name", ["bouncing", "smooth"])
def test_gradients_of_lanes(name):
    gradient = jax.grad(loss_of(name), (0, 1, 2))
    check(jax.jit(jax.vmap(gradient, (0, 0, None)))(U0, RATES, SHARED), one_by_one(name))
    check(jax.vmap(jax.jit(gradient), (0, 0, None))(U0, RATES, SHARED), one_by_one(name))


def test_levels_of_lanes():
    """Lanes of lanes, and a branch that may do without a solve."""
    lanes = lambda x: x.reshape(2, LANES // 2, *x.shape[1:])
    maybe = lambda on, *args: jax.lax.cond(on, loss_of("smooth"), lambda *_: 0.0, *args)
    gradient = jax.grad(maybe, (1, 2, 3))
    twice = jax.vmap(jax.vmap(gradient, (None, 0, 0, None)), (None, 0, 0, None))
    check(jax.jit(twice)(True, lanes(U0), lanes(RATES), SHARED), jax.tree.map(lanes, one_by_one("smooth")))


def test_jacobian():
    """A record that all directions share, and directions beside lanes."""
    rhs, _ = PROBLEMS["smooth"]

    def ends(u0, rate, shared):
        return hx.solve(hx.ODEProblem(rhs, u0, (0.0, 1.5), (rate, shared)), saveat=TIMES, **OPTIONS).us

    reverse = jax.jit(jax.vmap(jax.jacrev(ends, (0, 2)), (0, 0, None)))(U0[:5], RATES[:5], SHARED)
    forward = lambda *args: jax.jacfwd(
        lambda u0, s: hx.solve(
            hx.ODEProblem(rhs, u0, (0.0, 1.5), (args[1], s)), saveat=TIMES, sensealg=hx.ForwardSensitivity(), **OPTIONS
        ).us,
        (0, 1),
    )(args[0], args[2])
    check(reverse, jax.jit(jax.vmap(forward, (0, 0, None)))(U0[:5], RATES[:5], SHARED))


def test_a_failure_stays_on_its_lane():
    def loss(u0):
        prob = hx.ODEProblem(lambda u, p, t: u * u, u0, (0.0, 1.0), None)
        return hx.solve(prob, rtol=1e-6, atol=1e-6, max_steps=200, throw=False).us[-1, 0]

    starts = jnp.linspace(0.5, 1.5, LANES)[:, None]  # beyond 1 they are infinite before the end
    gradient = jax.jit(jax.vmap(jax.grad(loss)))(starts)[:, 0]
    fine = starts[:, 0] < 0.99
    np.testing.assert_allclose(gradient[fine], 1 / (1 - starts[fine, 0]) ** 2, rtol=1e-3)
    assert np.all(np.isnan(gradient[starts[:, 0] > 1.01]))


@pytest.mark.parametrize("count", [2 * tiles.LANES[1], 8 * tiles.LANES[1]])
def test_there_is_no_record_of_all_lanes(count):
    """One tile's: what a tile takes does not grow with their number."""
    u0, rates = jnp.tile(U0, (4, 1))[:count], jnp.tile(RATES, 4)[:count]
    total = lambda u0, rate: jnp.sum(jax.vmap(loss_of("smooth"), (0, 0, None))(u0, rate, SHARED))
    used = jax.jit(jax.grad(total)).lower(u0, rates).compile().memory_analysis().temp_size_in_bytes
    record = OPTIONS["max_steps"] * 4 * 8  # t, h and two components for each lane
    assert used < 2.5 * tiles.tile_lanes(count) * record + count * 2**11 or not one_kernel.active()


@pytest.mark.parametrize("count", [1, 16, 31, 32, 33, 40, 100, 255, 256, 1000])
def test_tiles_are_whole_vectors_and_of_much_the_same_size(count):
    lanes = tiles.tile_lanes(count)
    assert lanes == count <= tiles.LANES[1] or (lanes % tiles.VECTOR == 0 and tiles.LANES[0] <= lanes <= tiles.LANES[1])
    assert -(-count // lanes) * lanes - count < lanes
