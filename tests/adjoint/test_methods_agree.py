"""Every method, under every transformation, gives the gradient of complex steps through a flow of order 16 in NumPy.

Methods and transformations are crossed in full; callbacks, save_positions and problems are laid over them so that any two
values of any two factors meet at least once (the test of the grid counts them), methods with save_positions in three of
four cases: these two meet in C9, E and among the random problems as well. Fifteen programs prove what two factors can break
between them; the product would be 360. The gradient outside jit is what every acceptance case computes.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from methods import KINDS, METHODS, TWO
from problems.case import flat, relative_error
from problems.networks import mlp, wave_mlp

import hybridax as hx

SAVES = np.array([0.0, 0.3, 0.45, 0.6, 1.0])
OPTIONS = {"saveat": SAVES, "rtol": 1e-9, "atol": 1e-9}
LANES, DIRECTIONS = 2, 4


# ------------------------------------------------------------------ problems, each with two lanes of u0 and p
# ... and, like the affects, for NumPy and for JAX
def predators(xp, u, p, t):
    x, y = u
    a, b = p["rates"]
    return xp.stack([a * x - b * x * y, -y + p["growth"] * (1 + 0.2 * xp.sin(3 * t)) * x * y])


def network(xp, u, p, t):
    return mlp(p["layers"], xp.append(u, t), xp.tanh) - p["damping"] * u


def _lanes(tree):
    """Two lanes: the values given, and others near them."""
    return jax.tree.map(lambda x: jnp.stack([x, 0.9 * x + 0.05]), tree)


PROBLEMS = {
    "predators": (predators, jnp.array([1.0, 0.7]), {"rates": jnp.array([1.5, 1.0]), "growth": jnp.array(0.8)}),
    "network": (network, jnp.array([0.5, -1.0]), {"layers": wave_mlp([3, 5, 2]), "damping": jnp.array(0.5)}),
}


# ------------------------------------------------------------------ callbacks
def strength(xp, p):
    return xp.mean(jax.tree.leaves(p)[0])


def shift(xp, u, p, t):
    return u + 0.1 * strength(xp, p)


def mix(xp, u, p, t):
    return 0.5 * u[::-1] * xp.cos(t) + strength(xp, p) * xp.sin(u)


def rewrite(xp, u, p, t):
    return mix(xp, u, p, t), jax.tree.map(lambda x: 0.9 * x + 0.02 * xp.sin(u[0]), p)


def in_jax(function):
    return functools.partial(function, jnp)


CALLBACKS = {
    "periodic from the start": lambda s: hx.PeriodicCallback(in_jax(shift), 0.15, initial_affect=True, save_positions=s),
    "preset at both ends": lambda s: hx.PresetTimeCallback([0.0, 0.45, 1.0], in_jax(mix), save_positions=s),
    "set that writes parameters": lambda s: hx.CallbackSet(
        hx.PresetTimeCallback([0.3, 0.7], in_jax(rewrite), affects_params=True, save_positions=s),
        hx.PeriodicCallback(in_jax(shift), 0.3, final_affect=True, save_positions=s[::-1]),
    ),
}
#: the same for the reference: affects with their times, in the order of the set
EVENTS = {
    "periodic from the start": [(shift, [0.15 * k for k in range(7)])],
    "preset at both ends": [(mix, [0.0, 0.45, 1.0])],
    "set that writes parameters": [(rewrite, [0.3, 0.7]), (shift, [0.3 * k for k in (1, 2, 3)])],
}
POSITIONS = [(False, False), (False, True), (True, False), (True, True)]


# ------------------------------------------------------------------ transformations of a loss over both lanes
def _summed(loss, u0, p):
    return jnp.sum(jax.vmap(loss)(u0, p))


def _one_by_one(gradient, u0, p):
    lanes = [gradient(*jax.tree.map(lambda x, k=k: x[k], (u0, p))) for k in range(LANES)]
    return jax.tree.map(lambda *x: jnp.stack(x), *lanes)


TRANSFORMS = {
    "jit of grad": lambda loss, u0, p: _one_by_one(jax.jit(jax.grad(loss, (0, 1))), u0, p),
    "vmap of grad": lambda loss, u0, p: jax.jit(jax.vmap(jax.grad(loss, (0, 1))))(u0, p),
    "grad of vmap": lambda loss, u0, p: jax.jit(jax.grad(lambda *x: _summed(loss, *x), (0, 1)))(u0, p),
}


def make_loss(problem, callback, positions, method):
    f, _, _ = PROBLEMS[problem]

    def loss(u0, p):
        prob = hx.ODEProblem(in_jax(f), u0, (0.0, 1.0), p, callback=CALLBACKS[callback](positions))
        return weighed(jnp, hx.solve(prob, sensealg=METHODS[method], **OPTIONS).us)

    return loss


def weighed(xp, us):
    i, j = np.meshgrid(np.arange(us.shape[0]), np.arange(us.shape[1]), indexing="ij")
    return xp.sum(np.sin(1.0 + i + 2 * j) * us**2)


def reference_loss(problem, callback, positions, u0, p):
    f, _, _ = PROBLEMS[problem]
    jumps = []
    for affect, times in EVENTS[callback]:
        after = lambda u, p, t, affect=affect: affect(np, u, p, t) if affect is rewrite else (affect(np, u, p, t), p)
        # the periodic one of the set saves the other way round
        save = positions[::-1] if len(jumps) and affect is shift else positions
        jumps += [reference.Jump(t, after, save) for t in times]
    move = lambda u, p, a, b: reference.flow(lambda v, t: f(np, v, p, t), u, a, b)
    return weighed(np, np.stack([row.u for row in reference.rows(move, u0, p, (0.0, 1.0), SAVES, jumps)]))


@functools.lru_cache(maxsize=None)
def expected(problem, callback, positions):
    """``(lane, direction, slope)`` for random directions of (u0, p) in each lane."""
    rng, out = np.random.default_rng(0), []
    for lane in range(LANES):
        point = jax.tree.map(lambda x, k=lane: np.asarray(x[k]), (_lanes(PROBLEMS[problem][1]), _lanes(PROBLEMS[problem][2])))
        for _ in range(DIRECTIONS):
            direction = jax.tree.map(lambda x: rng.normal(size=x.shape), point)
            moved = jax.tree.map(lambda x, d: x + 1j * reference.STEP * d, point, direction)
            out.append((lane, direction, np.imag(reference_loss(problem, callback, positions, *moved)) / reference.STEP))
    return out


FACTORS = [KINDS, list(TRANSFORMS), list(CALLBACKS), POSITIONS, list(PROBLEMS)]
# places in FACTORS, found by a search
GRID = [
    (0, 0, 0, 3, 0), (0, 1, 1, 2, 0), (0, 2, 2, 0, 1), (1, 0, 0, 0, 1), (1, 1, 1, 3, 0), (1, 2, 2, 1, 1), (2, 0, 1, 1, 0),
    (2, 1, 0, 0, 1), (2, 2, 2, 3, 0), (3, 0, 1, 3, 1), (3, 1, 2, 0, 0), (3, 2, 0, 2, 1), (4, 0, 2, 2, 0), (4, 1, 0, 1, 1),
    (4, 2, 1, 0, 0),
]  # fmt: skip
CELLS = [[factor[k] for factor, k in zip(FACTORS, cell, strict=True)] for cell in GRID]


def test_any_two_values_of_any_two_factors_meet_in_the_grid():
    for a, b in itertools.combinations(range(len(FACTORS)), 2):
        met, every = {(c[a], c[b]) for c in GRID}, len(FACTORS[a]) * len(FACTORS[b])
        assert len(met) == (15 if (FACTORS[a], FACTORS[b]) == (KINDS, POSITIONS) else every)


@pytest.mark.parametrize("method, transform, callback, positions, problem", CELLS)
def test_gradient_of_each_lane_is_that_of_complex_steps(method, transform, callback, positions, problem):
    _, u0, p = PROBLEMS[problem]
    got = TRANSFORMS[transform](make_loss(problem, callback, positions, method), _lanes(u0), _lanes(p))
    for lane, direction, slope in expected(problem, callback, positions):
        own, along = flat(jax.tree.map(lambda x, k=lane: x[k], got)), flat(direction)
        assert abs(own @ along - slope) < 1e-6 * np.linalg.norm(own) * np.linalg.norm(along)


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
