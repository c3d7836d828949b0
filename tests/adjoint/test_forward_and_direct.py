"""Methods that differentiate the loop itself agree with the transposed steps, in every mode of differentiation."""

import functools

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


@functools.lru_cache(maxsize=None)
def gradient_of(function, method):
    """``jax.grad`` of a loss of (u0, p, method), compiled once for all tests."""
    return jax.jit(jax.grad(lambda *x: function(*x, method), (0, 1)))


@LOOPS
def test_gradient_is_that_of_the_transposed_steps_through_bounces_and_kicks(method):
    # the loop moves with the way to the next stop, the transposed steps do not: they agree to the tolerance of the solve
    assert relative_error(gradient_of(loss, method)(U0, P), gradient_of(loss, "discrete")(U0, P)) < 1e-6


@LOOPS
def test_tangents_and_cotangents_are_transposes_of_one_another(method):
    forwards = jax.jit(jax.jacfwd(loss, (0, 1)), static_argnums=2)(U0, P, method)
    assert relative_error(gradient_of(loss, method)(U0, P), forwards) < 1e-12


def kicked(u0, p, method):
    """One kick at a learned time: u(1) = (u0 exp(-k s) + 1) exp(-k (1 - s))."""
    callback = hx.PresetTimeCallback(p["time"], lambda u, p, t: u + 1.0, save_positions=(False, False))
    prob = hx.ODEProblem(lambda u, p, t: -p["rate"] * u, u0, (0.0, 1.0), p, callback=callback)
    return hx.solve(prob, saveat=[1.0], sensealg=ALL[method], **OPTIONS).us[0, 0]


@LOOPS
def test_lanes_and_shared_parameters(method):
    """grad of vmap sums a shared parameter over lanes; vmap of grad keeps each lane's own."""
    lanes, p = jnp.array([[1.0], [1.1], [3.0]]), {"rate": jnp.array(0.7), "time": jnp.array([0.4])}
    summed = jax.jit(jax.grad(lambda p: jnp.sum(jax.vmap(lambda u: kicked(u, p, method))(lanes))))(p)
    own = jax.jit(jax.vmap(jax.grad(lambda u, p: kicked(u, p, method), 1), (0, None)))(lanes, p)
    left, right = lanes[:, 0] * np.exp(-0.7), np.exp(-0.7 * 0.6)
    np.testing.assert_allclose(own["rate"], -left - 0.6 * right, rtol=1e-5)
    np.testing.assert_allclose(own["time"][:, 0], 0.7 * right, rtol=1e-5)
    assert relative_error(summed, jax.tree.map(lambda x: jnp.sum(x, 0), own)) < 1e-12


def complex_loss(u0, p, method):
    prob = hx.ODEProblem(lambda u, p, t: p * u + 0.1 * jnp.conj(u) ** 2 * u, u0, (0.0, 1.0), p)
    sol = hx.solve(prob, sensealg=ALL[method], saveat=0.5, **OPTIONS)
    return jnp.sum(jnp.abs(sol.us) ** 2) + jnp.sum(sol.us.imag)


@LOOPS
def test_complex_states_and_parameters(method):
    u0, p = jnp.array([0.5 + 0.2j, -0.3j]), jnp.array(-0.4 + 1.1j)
    got, expected = (gradient_of(complex_loss, name)(u0, p) for name in (method, "discrete"))
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
