"""A population some of whose solves fail: those that a loss leaves out have no share in any gradient, the others a NaN one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from methods import ALL, KINDS

import hybridax as hx

jax.config.update("jax_enable_x64", True)

SAVES = np.linspace(0.0, 2.0, 5)
STARTS = np.array([[1.0, 0.5], [3.0, 40.0], [0.2, 0.1], [np.nan, 1.0], [0.7, 0.3], [0.9, 0.8]])
OWN = np.array([0.1, 0.1, 0.2, 0.1, np.nan, 0.3])
GOOD = np.array([True, False, True, False, False, True])
SHARED = {"a": 0.5, "b": np.array([0.3, 0.05])}


def f(u, p, t):
    shared, own = p
    a, b = shared["a"], shared["b"]
    return jnp.stack([-a * u[0] + b[0] * u[1] ** 2, u[0] - a * u[1] - own * jnp.sqrt(u[0]) - b[1]])


def dose(u, p, t):
    return u + p[0]["b"]


def halve(u, p, t):
    return u * jnp.stack([0.5 + p[1], jnp.ones(())])


EVENTS = {
    "none": None,
    "known": hx.PeriodicCallback(dose, 0.7),
    "root": hx.ContinuousCallback(lambda u, p, t: u[0] - 0.8 - 0.1 * p[0]["a"], halve),
    "writes": hx.PeriodicCallback(lambda u, p, t: (u, (p[0], p[1] + 0.01 * u[0])), 0.7, affects_params=True),
}


def solver_of_population(method, callback, vmapped=jax.vmap):
    def one(u0, shared, own):
        prob = hx.ODEProblem(f, u0, (0.0, 2.0), (shared, own), callback=callback, saveat=SAVES)
        return hx.solve(
            prob, sensealg=method, max_steps=128, max_events=16, throw=False, running_cost=lambda u, p, t: p[0]["a"] * u[0]
        )

    return vmapped(one, (0, None, 0))


def gradient_of_population(method, callback):
    """``(starts, shared, own, used lanes) -> (gradients by the first three, which solves succeeded)``."""
    solve = solver_of_population(method, callback)

    def loss(starts, shared, own, used):
        sol = solve(starts, shared, own)
        rows = jnp.where(used[:, None, None] & sol.valid[..., None], sol.us, 0)
        return jnp.sum(rows**2) + jnp.sum(jnp.where(used, sol.cost, 0)), sol.retcode <= hx.RetCode.Terminated

    return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))


@pytest.mark.slow
@pytest.mark.parametrize("events", EVENTS)
@pytest.mark.parametrize("method", [name for name in ALL if name != "backsolve_without_checkpoints"])
def test_a_lane_that_fails_and_is_left_out_has_no_share(method, events):
    gradient = gradient_of_population(ALL[method], EVENTS[events])
    starts, own = STARTS, OWN
    if method == "direct":
        # JAX walks back through all that its loop computed: the solves that fail explode
        starts, own = np.where(GOOD[:, None], STARTS, STARTS[1]), np.where(GOOD, OWN, OWN[1])
    (du0, dshared, down), good = gradient(starts, SHARED, own, GOOD)
    np.testing.assert_array_equal(good, GOOD)
    # the same with lanes that do not fail in their place
    others = np.where(GOOD[:, None], STARTS, STARTS[0]), SHARED, np.where(GOOD, OWN, OWN[0])
    (du0_, dshared_, down_), good = gradient(*others, GOOD)
    assert np.all(good)
    assert np.all(np.asarray(du0)[~GOOD] == 0) and np.all(np.asarray(down)[~GOOD] == 0)
    for x, y in zip(jax.tree.leaves((du0, dshared, down)), jax.tree.leaves((du0_, dshared_, down_)), strict=True):
        assert np.all(np.isfinite(y)) and np.any(y != 0)
        np.testing.assert_allclose(x, y, rtol=1e-6 if method in ("backsolve", "gauss") else 1e-9, atol=1e-12)
    # used, it makes what it shares NaN, and what is its own; none used, there is no gradient
    (du0, dshared, down), _ = gradient(starts, SHARED, own, GOOD | (np.arange(6) == 1))
    assert all(np.all(np.isnan(x)) for x in jax.tree.leaves(dshared))
    assert np.all(np.isnan(du0[1])) and np.isnan(down[1])
    # what is their own is right on the others all the same
    for x, y in ((du0, du0_), (down, down_)):
        np.testing.assert_allclose(np.asarray(x)[GOOD], np.asarray(y)[GOOD], rtol=1e-6, atol=1e-12)
    for x in jax.tree.leaves(gradient(starts, SHARED, own, np.zeros(6, bool))[0]):
        np.testing.assert_array_equal(x, np.zeros(x.shape))


@pytest.mark.parametrize("method", KINDS)
def test_a_lane_with_an_infinite_derivative_that_is_left_out(method):
    """The first lane starts where a square root has none, and does not fail."""

    def loss(p, starts):
        prob = lambda u: hx.ODEProblem(lambda u, p, t: 1 + jnp.sqrt(p * u), u, (0.0, 1.0), p)
        ends = jax.vmap(lambda u: hx.solve(prob(u), sensealg=ALL[method], saveat=[1.0], throw=False).us[0, 0])(starts)
        return jnp.sum(jnp.where(jnp.arange(3) > 0, ends, 0))

    gradient, others = jax.jit(jax.grad(loss)), jnp.array([[0.3], [0.6]])
    got, expected = (gradient(0.5, jnp.concatenate([x, others])) for x in (jnp.zeros((1, 1)), others[:1]))
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def network(u, p, t):
    return jnp.tanh(p["w"] @ u + p["b"]) * p["scale"]


@pytest.mark.parametrize("n, lanes", [(2, 5), (2, 50), (3, 4), (8, 5), (40, 12), (70, 40)])
def test_whatever_way_the_steps_are_transposed(n, lanes):
    """A network of n components: Jacobians, products, tiles, chunks of one row; half of the lanes start at NaN."""
    rng = np.random.default_rng(0)
    p = {"w": rng.normal(size=(n, n)) / np.sqrt(n), "b": rng.normal(size=n), "scale": 1.5}
    starts, used = rng.normal(size=(lanes, n)), np.arange(lanes) % 2 == 0

    def loss(p, starts, checkpoints):
        def one(u0):
            prob = hx.ODEProblem(network, u0, (0.0, 1.0), p, saveat=[0.5, 1.0])
            method = hx.DiscreteAdjoint(checkpoints=4) if checkpoints else hx.DiscreteAdjoint()
            return hx.solve(prob, sensealg=method, max_steps=64, throw=False).us

        return jnp.sum(jnp.where(used[:, None, None], jax.vmap(one)(starts), 0) ** 2)

    for checkpoints in (False, True):
        gradient = jax.jit(jax.grad(lambda p, starts: loss(p, starts, checkpoints)))  # noqa: B023
        broken = np.where(used[:, None], starts, np.nan)
        for x, y in zip(*map(jax.tree.leaves, (gradient(p, broken), gradient(p, starts))), strict=True):
            assert np.any(y != 0)
            np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-13)


def test_a_grazing_event_of_a_lane_that_is_left_out():
    """The second ball touches its threshold, where the time of the event has no derivative."""

    def loss(g, used, method):
        def one(v):
            top = hx.ContinuousCallback(lambda u, p, t: u[0] - 0.5, lambda u, p, t: u * jnp.array([1.0, 0.5]))
            prob = hx.ODEProblem(lambda u, p, t: jnp.stack([u[1], -p]), jnp.stack([0 * v, v]), (0.0, 3.0), g, callback=top)
            return hx.solve(prob, sensealg=method, max_events=8, throw=False, rtol=1e-8, atol=1e-8, saveat=[3.0]).us[-1, 0]

        ends = jax.vmap(one)(jnp.array([1.4, 1.0 - 1e-12, 0.5]))
        return jnp.sum(jnp.where(used, ends, 0))

    for method in (hx.DiscreteAdjoint(), hx.InterpolatingAdjoint(), hx.ForwardSensitivity()):
        gradient = jax.jit(jax.grad(lambda g, used: loss(g, used, method)))  # noqa: B023
        first, third = (gradient(1.0, jnp.arange(3) == i) for i in (0, 2))
        assert np.isfinite(first)
        np.testing.assert_allclose(gradient(1.0, jnp.array([True, False, True])), first + third, rtol=1e-6)


@pytest.mark.parametrize("method", [name for name in ALL if name != "backsolve_without_checkpoints"])
def test_whatever_is_shown_of_a_failed_solve_has_a_nan_gradient(method):
    """Padding rows, times, the cost, the row that holds u0: a loss that reads one of them uses the solve."""
    solve = solver_of_population(ALL[method], EVENTS["root"], lambda one, axes: one)

    def loss(shared, weights):
        sol = solve(jnp.asarray(STARTS[1]), shared, OWN[1])
        shown = jnp.stack([sol.us[-1, 0], sol.ts[-1], sol.cost, sol.us[0, 0], sol.events.times[-1]])
        return jnp.sum(jnp.where(weights != 0, weights * shown, 0)), (sol.retcode, sol.valid)

    gradient = jax.jit(jax.grad(loss, has_aux=True))
    for weights in (*np.eye(5), 1e-300 * np.eye(5)[2]):
        got, (retcode, valid) = gradient(SHARED, weights)
        assert retcode > hx.RetCode.Terminated and not valid[-1]
        assert all(np.all(np.isnan(x)) for x in jax.tree.leaves(got)), weights
    assert all(np.all(x == 0) for x in jax.tree.leaves(gradient(SHARED, np.zeros(5))[0]))


@pytest.mark.parametrize("method", KINDS)
def test_second_derivatives_of_a_failed_solve_are_nan(method):
    def loss(p, end):
        prob = hx.ODEProblem(lambda u, p, t: p * u**2, jnp.ones(1), (0.0, end), p)
        return hx.solve(prob, sensealg=ALL[method], max_steps=64, throw=False).us[-1, 0]

    second = jax.jit(lambda p, end: jax.jvp(jax.grad(loss), (p, end), (1.0, 0.0))[1])
    assert np.isnan(second(1.0, 2.0))
    np.testing.assert_allclose(second(1.0, 0.5), 2 * 0.5**2 / (1 - 0.5) ** 3, rtol=2e-2)
