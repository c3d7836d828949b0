"""Gradients of times: of the span's ends, of saved rows, of event times, by every method; closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from methods import KINDS, METHODS, TWO

import hybridax as hx

EVERY = pytest.mark.parametrize("method", KINDS)
EITHER = pytest.mark.parametrize("method", TWO)
OPTIONS = {"rtol": 1e-10, "atol": 1e-10}


def growth(u, p, t):
    """u(t) = u0 exp(p (t^2 - t0^2) / 2)"""
    return p * t * u


def solve(method, tspan=(0.5, 1.5), p=0.8, **options):
    prob = hx.ODEProblem(growth, jnp.array([1.3]), tspan, jnp.asarray(p))
    return hx.solve(prob, sensealg=METHODS[method], **OPTIONS, **options)


def exact(t, t0=0.5, p=0.8):
    return 1.3 * np.exp(p * (t**2 - t0**2) / 2)


@EVERY
def test_gradient_of_both_ends_of_the_span(method):
    gradient = jax.jit(jax.grad(lambda t0, t1: solve(method, (t0, t1), saveat=None).us[-1, 0], (0, 1)))(0.5, 1.5)
    np.testing.assert_allclose(gradient, [-0.8 * 0.5 * exact(1.5), 0.8 * 1.5 * exact(1.5)], rtol=1e-7)


@EVERY
def test_gradient_of_save_times_is_the_slope_there(method):
    times = jnp.array([1.1, 0.7, 0.9])
    gradient = (jax.grad(lambda ts: jnp.sum(solve(method, saveat=ts).us ** 2)))(times)
    np.testing.assert_allclose(gradient, 2 * 0.8 * times * exact(times) ** 2, rtol=1e-7)


@EITHER
def test_times_of_rows_carry_gradients(method):
    gradient = (jax.grad(lambda ts: jnp.sum(solve(method, saveat=ts).ts ** 2)))(jnp.array([1.1, 0.7]))
    np.testing.assert_allclose(gradient, [2.2, 1.4], rtol=1e-12)


@EITHER
def test_the_end_of_the_span_moves_the_last_row_in_time_and_value(method):
    def loss(t1):
        sol = solve(method, (0.5, t1))
        return sol.ts[-1] * sol.us[-1, 0]

    gradient = jax.jit(jax.grad(loss))(1.5)
    assert float(gradient) == pytest.approx(exact(1.5) + 1.5 * 0.8 * 1.5 * exact(1.5), rel=1e-7)


@EVERY
@pytest.mark.parametrize("positions", [(False, False), (True, True)], ids=["limits not saved", "limits saved"])
def test_gradient_of_an_event_time_and_of_its_saved_limits(positions, method):
    """u <- u + 1 at s: u(t) = (u(s-) + 1) exp(p (t^2 - s^2) / 2) afterwards."""

    def loss(s):
        callback = hx.PresetTimeCallback(s, lambda u, p, t: u + 1.0, save_positions=positions)
        sol = solve(method, callback=callback)
        return jnp.sum(jnp.where(sol.valid[:, None], sol.us, 0.0))

    s, t1, p = 1.1, 1.5, 0.8
    later = -p * s * np.exp(p * (t1**2 - s**2) / 2)  # of exp(p (t1^2 - s^2) / 2)
    limits = 2 * p * s * exact(s) if positions[0] else 0.0  # both limits move along the solution before the jump
    gradient = jax.jit(jax.grad(loss))(jnp.array([s]))
    assert float(gradient[0]) == pytest.approx(later + limits, rel=1e-7)


@EITHER
def test_an_affect_that_reads_the_time_passes_its_gradient_to_the_event_time(method):
    def loss(s):
        callback = hx.PresetTimeCallback(s, lambda u, p, t: jnp.sin(t) * u, save_positions=(False, False))
        prob = hx.ODEProblem(lambda u, p, t: -u, jnp.ones(1), (0.0, 2.0))
        sol = hx.solve(prob, callback=callback, sensealg=METHODS[method], **OPTIONS)
        return jnp.sum(jnp.where(sol.valid[:, None], sol.us, 0.0))

    gradient = jax.jit(jax.grad(loss))(jnp.array([0.6]))
    assert float(gradient[0]) == pytest.approx(np.cos(0.6) * np.exp(-2.0), rel=1e-7)


@EITHER
def test_event_times_in_the_log_carry_gradients(method):
    def loss(s):
        callback = hx.PresetTimeCallback(s, lambda u, p, t: u, save_positions=(False, False))
        return jnp.sum(solve(method, callback=callback).events.times ** 2)

    np.testing.assert_allclose(jax.jit(jax.grad(loss))(jnp.array([0.7, 1.2])), [1.4, 2.4], rtol=1e-12)


@EVERY
def test_gradients_of_a_reverse_time_span_are_those_of_the_closed_form(method):
    def loss(u0, p, t0):
        prob = hx.ODEProblem(growth, u0, (t0, 0.5), p)
        callback = hx.PresetTimeCallback([1.0], lambda u, p, t: p * u, save_positions=(False, False))
        return hx.solve(prob, callback=callback, sensealg=METHODS[method], **OPTIONS).us[-1, 0]

    p, t0 = 0.8, 1.5
    value = p * np.exp(p * (0.25 - t0**2) / 2)
    got = jax.jit(jax.grad(loss, (0, 1, 2)))(jnp.array([1.0]), jnp.asarray(p), t0)
    np.testing.assert_allclose(got[0], [value], rtol=1e-7)
    np.testing.assert_allclose(got[1], value * (1 / p + (0.25 - t0**2) / 2), rtol=1e-7)
    np.testing.assert_allclose(got[2], -p * t0 * value, rtol=1e-7)


@EITHER
def test_a_nan_cotangent_on_a_padding_row_is_dropped(method):
    """Padding is NaN; a loss that multiplies it by zero sends NaN back on it."""

    def loss(p, s):
        callback = hx.PresetTimeCallback(s, lambda u, p, t: p * u, save_positions=(False, True))
        sol = solve(method, p=p, callback=callback)
        return jnp.sum(jnp.where(sol.valid[:, None], sol.us**2, 0.0))  # the square of a NaN row, masked too late

    gradient = jax.jit(jax.grad(loss))(jnp.asarray(0.8), jnp.array([0.5, 1.0]))
    assert np.isfinite(gradient)
