"""Methods that differentiate the loop itself agree with the transposed steps, in every mode of differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from methods import ALL
from problems.case import relative_error

import hybridax as hx

LOOPS = pytest.mark.parametrize("method", ["forward", "direct"])
OPTIONS = {"rtol": 1e-7, "atol": 1e-7, "max_steps": 256}
U0, P = jnp.array([1.0, 0.0]), {"gravity": jnp.array(9.81), "bounce": jnp.array(0.8)}


def fall(u, p, t):
    return jnp.stack([u[1], -p["gravity"]])


BOUNCE = hx.ContinuousCallback(
    lambda u, p, t: u[0], lambda u, p, t: jnp.stack([u[0], -p["bounce"] * u[1]]), save_positions=(True, False)
)


def loss(u0, p, method):
    """Rows, event times and a kick at a known time."""
    kick = hx.PresetTimeCallback(p["gravity"][None] / 20, lambda u, p, t: u + jnp.stack([jnp.zeros(()), 0.3 * t]))
    sol = hx.solve(
        hx.ODEProblem(fall, u0, (0.0, 1.2), p),
        callback=hx.CallbackSet(BOUNCE, kick),
        saveat=np.linspace(0.0, 1.2, 5),
        max_events=8,
        sensealg=ALL[method],
        **OPTIONS,
    )
    rows = jnp.where(sol.valid[:, None], sol.us, 0.0)
    return jnp.sum(rows**2) + jnp.sum(jnp.where(jnp.isfinite(sol.events.times), sol.events.times, 0.0))


@LOOPS
def test_gradient_is_that_of_the_transposed_steps_through_bounces_and_kicks(method):
    expected = jax.grad(loss, (0, 1))(U0, P, "discrete")
    got = jax.grad(loss, (0, 1))(U0, P, method)
    # the loop moves with the way to the next stop, the transposed steps do not: they agree to the tolerance of the solve
    assert relative_error(got, expected) < 1e-6


@LOOPS
def test_tangents_and_cotangents_are_transposes_of_one_another(method):
    gradient = jax.jit(jax.grad(loss, (0, 1)), static_argnums=2)(U0, P, method)
    forwards = jax.jit(jax.jacfwd(loss, (0, 1)), static_argnums=2)(U0, P, method)
    assert relative_error(gradient, forwards) < 1e-12


@LOOPS
def test_lanes_and_shared_parameters(method):
    """grad of vmap sums a shared parameter over lanes; vmap of grad keeps each lane's own."""
    lanes = jnp.stack([U0, 1.1 * U0, U0 + 0.2])
    summed = jax.jit(jax.grad(lambda p: jnp.sum(jax.vmap(lambda u: loss(u, p, method))(lanes))))(P)
    own = jax.jit(jax.vmap(jax.grad(lambda u, p: loss(u, p, method), 1), (0, None)))(lanes, P)
    first = jax.tree.map(lambda x: x[0], own)
    assert relative_error(first, jax.grad(loss, 1)(U0, P, method)) < 1e-9
    assert relative_error(summed, jax.tree.map(lambda x: jnp.sum(x, 0), own)) < 1e-12


@LOOPS
def test_complex_states_and_parameters(method):
    def f(u, p, t):
        return p * u + 0.1 * jnp.conj(u) ** 2 * u

    def value(u0, p, name):
        sol = hx.solve(hx.ODEProblem(f, u0, (0.0, 1.0), p), sensealg=ALL[name], saveat=0.5, **OPTIONS)
        return jnp.sum(jnp.abs(sol.us) ** 2) + jnp.sum(sol.us.imag)

    u0, p = jnp.array([0.5 + 0.2j, -0.3j]), jnp.array(-0.4 + 1.1j)
    expected = jax.grad(value, (0, 1))(u0, p, "discrete")
    got = jax.grad(value, (0, 1))(u0, p, method)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@LOOPS
def test_a_solve_that_fails_inside_jit_has_no_gradient(method):
    def end(p):
        prob = hx.ODEProblem(lambda u, p, t: p * u**2, jnp.ones(1), (0.0, 2.0), p, max_steps=64)
        sol = hx.solve(prob, sensealg=ALL[method], saveat=np.array([0.1, 2.0]))
        return sol.us[0, 0], sol.retcode

    gradient, code = jax.jit(jax.grad(end, has_aux=True))(1.0)
    assert code > hx.RetCode.Terminated and np.isnan(gradient)


def lotka(u, p, t):
    x, y = u
    a, b, c, d = p
    return jnp.stack([a * x - b * x * y, -c * y + d * x * y])


RATES = jnp.array([1.5, 1.0, 3.0, 1.0])


def lotka_sum(p, method):
    prob = hx.ODEProblem(lotka, jnp.ones(2), (0.0, 2.0), p, rtol=1e-10, atol=1e-10, max_steps=256)
    return jnp.sum(hx.solve(prob, sensealg=ALL[method], saveat=0.5).us ** 2)


@pytest.fixture(scope="module")
def hessian_by_differences():
    gradient, h = jax.jit(jax.grad(lotka_sum), static_argnums=1), 1e-4
    columns = [(gradient(RATES + h * e, "discrete") - gradient(RATES - h * e, "discrete")) / (2 * h) for e in jnp.eye(4)]
    return jnp.stack(columns)


@pytest.mark.parametrize("method", [name for name in ALL if name != "backsolve_without_checkpoints"])
def test_hessian_of_every_method_matches_differences_of_the_gradient(method, hessian_by_differences):
    """jacfwd of grad, against central differences; the error of those is of order h^2, 1e-8 relative."""
    got = jax.jit(jax.jacfwd(jax.grad(lotka_sum)), static_argnums=1)(RATES, method)
    assert relative_error(got, hessian_by_differences) < 1e-6
