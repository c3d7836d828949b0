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
def test_gradient_of_both_ends_of_the_span_and_of_save_times(method):
    """``end`` weighs the end against the saved rows: one compiled gradient gives both."""

    @jax.jit
    def gradient(end, *times):
        def loss(t0, t1, saves):
            us = solve(method, (t0, t1), saveat=saves, save_end=True).us[:, 0]
            return end * us[-1] + (1 - end) * jnp.sum(us[:-1] ** 2)

        return jax.grad(loss, (0, 1, 2))(*times)

    saves = jnp.array([1.1, 0.7, 0.9])
    first, last, none = gradient(1.0, 0.5, 1.5, saves)
    np.testing.assert_allclose([first, last], [-0.8 * 0.5 * exact(1.5), 0.8 * 1.5 * exact(1.5)], rtol=1e-7)
    np.testing.assert_array_equal(none, np.zeros(3))
    first, last, slopes = gradient(0.0, 0.5, 1.5, saves)
    np.testing.assert_allclose(slopes, 2 * 0.8 * saves * exact(saves) ** 2, rtol=1e-7)
    np.testing.assert_allclose([first, last], [-2 * 0.8 * 0.5 * np.sum(exact(saves) ** 2), 0.0], rtol=1e-7)


@EITHER
def test_times_of_rows_and_of_the_log_carry_gradients_and_the_end_moves_the_last_row(method):
    """Three losses by their weights, through two events that do nothing."""

    @jax.jit
    def gradient(weights, *times):
        def loss(t1, saves, events):
            callback = hx.PresetTimeCallback(events, lambda u, p, t: u, save_positions=(False, False))
            sol = solve(method, (0.5, t1), saveat=saves, save_end=True, callback=callback)
            terms = [jnp.sum(sol.ts[:-1] ** 2), jnp.sum(sol.events.times**2), sol.ts[-1] * sol.us[-1, 0]]
            return weights @ jnp.stack(terms)

        return jax.grad(loss, (0, 1, 2))(*times)

    of_rows, of_log, of_end = (gradient(w, 1.5, jnp.array([1.1, 0.8]), jnp.array([0.7, 1.2])) for w in jnp.eye(3))
    close = lambda got, expected: np.testing.assert_allclose(got, expected, rtol=1e-7, atol=1e-9)
    close(np.concatenate([of_rows[1], of_rows[2]]), [2.2, 1.6, 0.0, 0.0])
    close(np.concatenate([of_log[1], of_log[2]]), [0.0, 0.0, 1.4, 2.4])
    close(of_end[0], exact(1.5) + 1.5 * 0.8 * 1.5 * exact(1.5))


# limits that are not saved: also by every method in cases C9 and P7
POSITIONS = [((True, True), method) for method in KINDS] + [((False, False), "discrete")]


@pytest.mark.parametrize("positions, method", POSITIONS)
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
