"""Every method, under every transformation, gives the gradient of the discrete adjoint of one lane under jit.

Methods and save_positions are crossed in full; callbacks, transformations and problems are laid over them so that any two
values of any two of the five meet at least once (the test of the grid counts them). Twenty programs prove what two factors
can break between them; the product of all five would be 480.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from methods import KINDS, METHODS, TWO
from problems.case import relative_error
from problems.networks import mlp, wave_mlp

import hybridax as hx

SAVES = np.array([0.0, 0.3, 0.45, 0.6, 1.0])
OPTIONS = {"saveat": SAVES, "rtol": 1e-9, "atol": 1e-9}
LANES = 2


# ------------------------------------------------------------------ problems, each with two lanes of u0 and p
def predators(u, p, t):
    x, y = u
    a, b = p["rates"]
    return jnp.stack([a * x - b * x * y, -y + p["growth"] * (1 + 0.2 * jnp.sin(3 * t)) * x * y])


def network(u, p, t):
    return mlp(p["layers"], jnp.append(u, t)) - p["damping"] * u


def _lanes(tree):
    """Two lanes: the values given, and others near them."""
    return jax.tree.map(lambda x: jnp.stack([x, 0.9 * x + 0.05]), tree)


PROBLEMS = {
    "predators": (predators, jnp.array([1.0, 0.7]), {"rates": jnp.array([1.5, 1.0]), "growth": jnp.array(0.8)}),
    "network": (network, jnp.array([0.5, -1.0]), {"layers": wave_mlp([3, 5, 2]), "damping": jnp.array(0.5)}),
}


# ------------------------------------------------------------------ callbacks
def strength(p):
    return jnp.mean(jax.tree.leaves(p)[0])


def shift(u, p, t):
    return u + 0.1 * strength(p)


def mix(u, p, t):
    return 0.5 * u[::-1] * jnp.cos(t) + strength(p) * jnp.sin(u)


def rewrite(u, p, t):
    return mix(u, p, t), jax.tree.map(lambda x: 0.9 * x + 0.02 * jnp.sin(u[0]), p)


CALLBACKS = {
    "periodic from the start": lambda s: hx.PeriodicCallback(shift, 0.15, initial_affect=True, save_positions=s),
    "preset at both ends": lambda s: hx.PresetTimeCallback([0.0, 0.45, 1.0], mix, save_positions=s),
    "set that writes parameters": lambda s: hx.CallbackSet(
        hx.PresetTimeCallback([0.3, 0.7], rewrite, affects_params=True, save_positions=s),
        hx.PeriodicCallback(shift, 0.3, final_affect=True, save_positions=s[::-1]),
    ),
}
POSITIONS = [(False, False), (False, True), (True, False), (True, True)]


# ------------------------------------------------------------------ transformations of a loss over both lanes
def _summed(loss, u0, p):
    return jnp.sum(jax.vmap(loss)(u0, p))


def _one_by_one(gradient, u0, p):
    lanes = [gradient(*jax.tree.map(lambda x, k=k: x[k], (u0, p))) for k in range(LANES)]
    return jax.tree.map(lambda *x: jnp.stack(x), *lanes)


TRANSFORMS = {
    "grad": lambda loss, u0, p: _one_by_one(jax.grad(loss, (0, 1)), u0, p),
    "jit of grad": lambda loss, u0, p: _one_by_one(jax.jit(jax.grad(loss, (0, 1))), u0, p),
    "vmap of grad": lambda loss, u0, p: jax.jit(jax.vmap(jax.grad(loss, (0, 1))))(u0, p),
    "grad of vmap": lambda loss, u0, p: jax.jit(jax.grad(lambda *x: _summed(loss, *x), (0, 1)))(u0, p),
}


def make_loss(problem, callback, positions, method):
    f, _, _ = PROBLEMS[problem]

    def loss(u0, p):
        prob = hx.ODEProblem(f, u0, (0.0, 1.0), p, callback=CALLBACKS[callback](positions))
        us = hx.solve(prob, sensealg=METHODS[method], **OPTIONS).us
        i, j = np.meshgrid(np.arange(us.shape[0]), np.arange(us.shape[1]), indexing="ij")
        return jnp.sum(np.sin(1.0 + i + 2 * j) * us**2)

    return loss


@functools.lru_cache(maxsize=None)
def expected(problem, callback, positions):
    _, u0, p = PROBLEMS[problem]
    return TRANSFORMS["jit of grad"](make_loss(problem, callback, positions, "discrete"), _lanes(u0), _lanes(p))


FACTORS = [KINDS, POSITIONS, list(CALLBACKS), list(TRANSFORMS), list(PROBLEMS)]
# places in FACTORS, found by a search that also keeps the number of references (problem, callback, positions) at twelve
GRID = [
    (0, 0, 1, 0, 1), (0, 1, 2, 1, 1), (0, 2, 1, 2, 0), (0, 3, 0, 3, 0), (1, 0, 1, 1, 1), (1, 1, 1, 2, 0), (1, 2, 0, 3, 1),
    (1, 3, 2, 0, 1), (2, 0, 0, 2, 0), (2, 1, 2, 3, 1), (2, 2, 1, 0, 0), (2, 3, 0, 1, 0), (3, 0, 1, 3, 1), (3, 1, 0, 0, 1),
    (3, 2, 2, 1, 0), (3, 3, 2, 2, 1), (4, 0, 2, 0, 1), (4, 1, 0, 1, 1), (4, 2, 1, 2, 0), (4, 3, 1, 3, 1),
]  # fmt: skip
CELLS = [[factor[k] for factor, k in zip(FACTORS, cell, strict=True)] for cell in GRID]


def test_any_two_values_of_any_two_factors_meet_in_the_grid():
    for a, b in itertools.combinations(range(len(FACTORS)), 2):
        assert {(c[a], c[b]) for c in GRID} == set(itertools.product(range(len(FACTORS[a])), range(len(FACTORS[b]))))


@pytest.mark.parametrize("method, positions, callback, transform, problem", CELLS)
def test_gradient_equals_the_discrete_one_of_each_lane(method, positions, callback, transform, problem):
    _, u0, p = PROBLEMS[problem]
    got = TRANSFORMS[transform](make_loss(problem, callback, positions, method), _lanes(u0), _lanes(p))
    for a, b in zip(got, expected(problem, callback, positions), strict=True):
        assert relative_error(a, b) < 1e-6


@pytest.mark.parametrize("method", TWO)
def test_a_shared_parameter_gets_the_sum_over_lanes(method):
    """vmap over u0 alone: p is not a lane's own, and its gradient is the sum."""
    _, u0, p = PROBLEMS["network"]
    loss = make_loss("network", "preset at both ends", (True, True), method)
    got = jax.jit(jax.grad(lambda q: jnp.sum(jax.vmap(lambda u: loss(u, q))(_lanes(u0)))))(p)
    alone = jax.jit(jax.grad(loss, 1))
    each = [alone(u, p) for u in _lanes(u0)]
    assert relative_error(got, jax.tree.map(jnp.add, *each)) < 1e-6


def test_lanes_take_their_own_steps():
    prob = hx.ODEProblem(lambda u, p, t: p * jnp.cos(p * t) * jnp.ones_like(u), jnp.zeros(1), (0.0, 1.0))
    rates = jnp.array([1.0, 50.0])
    together = jax.vmap(lambda p: hx.solve(prob, p=p, rtol=1e-8, atol=1e-8))(rates)
    for k, rate in enumerate(rates):
        alone = hx.solve(prob, p=rate, rtol=1e-8, atol=1e-8)
        assert int(together.stats.accepted[k]) == int(alone.stats.accepted)
        # step lengths are rounded differently, which moves the result by a small part of the tolerance
        np.testing.assert_allclose(together.us[k], alone.us, rtol=1e-9)
    assert int(together.stats.accepted[1]) > 5 * int(together.stats.accepted[0])


def test_a_vmap_of_a_vmap_gives_every_lane():
    prob = hx.ODEProblem(lambda u, p, t: -p * u, jnp.ones(1), (0.0, 1.0), rtol=1e-9, atol=1e-9)
    u0, p = jnp.array([[1.0], [2.0], [3.0]]), jnp.array([0.5, 1.5])
    end = lambda u, q: hx.solve(prob, u0=u, p=q).us[-1, 0]
    gradient = jax.jit(jax.vmap(jax.vmap(jax.grad(end, 1), (None, 0)), (0, None)))(u0, p)
    np.testing.assert_allclose(gradient, -u0 * np.exp(-p)[None, :], rtol=1e-7)
