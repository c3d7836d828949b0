"""Cases P15 and P16: when a terminating event happens, and the gradient of that time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from methods import KINDS, METHODS
from problems.state_events import last_time

import hybridax as hx

EVERY = pytest.mark.parametrize("method", KINDS)
OPTIONS = {"rtol": 1e-10, "atol": 1e-10}


def identity(u, p, t):
    return u


def stop_at(condition):
    return hx.ContinuousCallback(condition, identity, terminate=True, save_positions=(True, False))


def last_value(sol):
    return float(sol.us[int(np.sum(sol.valid)) - 1, 0])


@EVERY
def test_p15a_time_of_reaching_a_threshold_and_its_gradient(method):
    def loss(u0, threshold):
        prob = hx.ODEProblem(lambda u, p, t: u, u0, (0.0, 2.0))
        return last_time(
            hx.solve(prob, callback=stop_at(lambda u, p, t: u[0] - threshold), sensealg=METHODS[method], **OPTIONS)
        )

    value, (grad_u0, grad_threshold) = jax.jit(jax.value_and_grad(loss, (0, 1)))(jnp.array([1.0]), jnp.asarray(np.e))
    assert float(value) == pytest.approx(1.0, abs=1e-9)
    assert float(grad_u0[0]) == pytest.approx(-1.0, rel=1e-6)
    assert float(grad_threshold) == pytest.approx(1 / np.e, rel=1e-6)


def climb(t1, callback):
    return hx.solve(
        hx.ODEProblem(lambda u, p, t: jnp.ones_like(u), jnp.array([-10.0]), (0.0, t1)), callback=callback, **OPTIONS
    )


def test_p15b_a_straight_line_stops_at_its_root():
    sol = climb(20.0, stop_at(lambda u, p, t: u[0]))
    assert hx.RetCode(int(sol.retcode)) == hx.RetCode.Terminated
    assert float(last_time(sol)) == pytest.approx(10.0, abs=1e-9)
    assert last_value(sol) == pytest.approx(0.0, abs=1e-9)


def test_p15c_without_a_root_the_solve_ends_with_success():
    sol = climb(5.0, stop_at(lambda u, p, t: u[0]))
    assert hx.RetCode(int(sol.retcode)) == hx.RetCode.Success
    assert (float(last_time(sol)), last_value(sol)) == pytest.approx((5.0, -5.0), abs=1e-9)


def test_p15d_the_first_of_two_stopping_events_is_named():
    sol = climb(20.0, hx.CallbackSet(stop_at(lambda u, p, t: t - 10.0), stop_at(lambda u, p, t: u[0] + 5.0)))
    assert (float(last_time(sol)), last_value(sol)) == pytest.approx((5.0, -5.0), abs=1e-9)
    assert sol.events.callback.tolist()[0] == 1
    assert float(sol.events.times[0]) == pytest.approx(5.0, abs=1e-9)


HEIGHTS = jnp.array([1.0, 3.0, 10.0])


def bounce_time(x0, method):
    prob = hx.ODEProblem(lambda u, p, t: jnp.stack([u[1], -8.0 + 0.0 * u[1]]), jnp.stack([x0, jnp.zeros(())]), (0.0, 3.0))
    return last_time(hx.solve(prob, callback=stop_at(lambda u, p, t: u[0]), sensealg=METHODS[method], **OPTIONS))


LANES = [(method, True) for method in KINDS] + [("discrete", False)]


@pytest.mark.parametrize("method, lanes", LANES)
def test_p16_gradient_of_a_bounce_time_is_the_closed_form_in_lanes_and_alone(method, lanes):
    one = jax.value_and_grad(lambda x: bounce_time(x, method))
    compiled = jax.jit(jax.vmap(one) if lanes else one)
    value, gradient = compiled(HEIGHTS) if lanes else map(jnp.stack, zip(*map(compiled, HEIGHTS), strict=True))
    np.testing.assert_allclose(value, np.sqrt(HEIGHTS) / 2, rtol=1e-9)
    np.testing.assert_allclose(gradient, 1 / (4 * np.sqrt(HEIGHTS)), rtol=1e-6)
