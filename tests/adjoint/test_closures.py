"""Arrays that f and affects close over get the same gradient as if they had been passed in p."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from methods import METHODS, TWO
from problems.case import relative_error

import hybridax as hx

EITHER = pytest.mark.parametrize("method", TWO)
U0, TIMES = jnp.array([1.0, 0.5]), np.array([0.4, 0.9])
SAVES = np.array([0.3, 0.4, 1.0, 1.5])
P = {"rate": jnp.array([[-0.2, 1.0], [-1.1, -0.1]]), "gain": jnp.array([0.7, 1.2]), "shift": jnp.array(0.3)}
OPTIONS = {"saveat": SAVES, "rtol": 1e-9, "atol": 1e-9}


def f(u, rate, t):
    return rate @ jnp.tanh(u) + jnp.sin(t) * u[::-1]


def affect(u, gain, shift, t):
    return u * gain + shift * jnp.cos(t)


def summed(sol):
    return jnp.sum(jnp.where(sol.valid[:, None], sol.us, 0.0) ** 2)


@functools.lru_cache(maxsize=None)
def gradient_through_p(method):
    def loss(p):
        callback = hx.PresetTimeCallback(TIMES, lambda u, p, t: affect(u, p["gain"], p["shift"], t))
        prob = hx.ODEProblem(lambda u, p, t: f(u, p["rate"], t), U0, (0.0, 1.5), p)
        return summed(hx.solve(prob, sensealg=METHODS[method], callback=callback, **OPTIONS))

    return jax.jit(jax.grad(loss))(P)


# the interpolating and the discrete method: in test_capture_matrix.py, through conditions and costs as well
@pytest.mark.parametrize("method", ["backsolve", "quadrature", "gauss"])
def test_gradient_of_captured_arrays_equals_that_of_parameters(method):
    def loss(q):
        callback = hx.PresetTimeCallback(TIMES, lambda u, p, t: affect(u, q["gain"], q["shift"], t))
        prob = hx.ODEProblem(lambda u, p, t: f(u, q["rate"], t), U0, (0.0, 1.5))
        return summed(hx.solve(prob, sensealg=METHODS[method], callback=callback, **OPTIONS))

    assert relative_error(jax.jit(jax.grad(loss))(P), gradient_through_p(method)) < 1e-12


@pytest.mark.parametrize("method", ["discrete"])
def test_gradient_is_the_same_whether_arrays_are_captured_eagerly_or_under_jit(method):
    def loss(rate):
        prob = hx.ODEProblem(lambda u, p, t: f(u, rate, t), U0, (0.0, 1.5))
        return summed(hx.solve(prob, sensealg=METHODS[method], **OPTIONS))

    eager, compiled = jax.grad(loss)(P["rate"]), jax.jit(jax.grad(loss))(P["rate"])
    np.testing.assert_allclose(eager, compiled, rtol=1e-12)


class Kick(eqx.Module):
    """An affect that is an object holding its arrays."""

    gain: jax.Array
    shift: jax.Array

    def __call__(self, u, p, t):
        return affect(u, self.gain, self.shift, t)


class Field(eqx.Module):
    rate: jax.Array

    def __call__(self, u, p, t):
        return f(u, self.rate, t)


@pytest.mark.parametrize("method", ["discrete"])
def test_arrays_inside_callable_objects_get_their_gradient(method):
    def loss(objects):
        field, kick = objects
        prob = hx.ODEProblem(field, U0, (0.0, 1.5), callback=hx.PresetTimeCallback(TIMES, kick))
        return summed(hx.solve(prob, sensealg=METHODS[method], **OPTIONS))

    field, kick = jax.jit(jax.grad(loss))((Field(P["rate"]), Kick(P["gain"], P["shift"])))
    expected = gradient_through_p(method)
    assert relative_error(field.rate, expected["rate"]) < 1e-12
    assert relative_error([kick.gain, kick.shift], [expected["gain"], expected["shift"]]) < 1e-12


@EITHER
def test_the_same_array_captured_by_f_and_by_an_affect_gets_the_sum_of_both_gradients(method):
    def loss(x):
        callback = hx.PresetTimeCallback(TIMES, lambda u, p, t: x * u)
        prob = hx.ODEProblem(lambda u, p, t: -x * u, jnp.ones(1), (0.0, 1.5))
        return jnp.sum(hx.solve(prob, sensealg=METHODS[method], callback=callback, rtol=1e-10, atol=1e-10).us[-1])

    x = 0.7
    exact = (2 * x - 1.5 * x**2) * np.exp(-1.5 * x)  # of x^2 exp(-1.5 x)
    assert float(jax.jit(jax.grad(loss))(jnp.asarray(x))) == pytest.approx(exact, rel=1e-7)


@pytest.mark.parametrize("method", ["interpolating"])
def test_captured_arrays_are_lanes_of_their_own_under_vmap(method):
    def loss(rate):
        prob = hx.ODEProblem(lambda u, p, t: f(u, rate, t), U0, (0.0, 1.5))
        return summed(hx.solve(prob, sensealg=METHODS[method], **OPTIONS))

    rates = jnp.stack([P["rate"], 0.5 * P["rate"]])
    together = jax.jit(jax.vmap(jax.grad(loss)))(rates)
    single = jax.jit(jax.grad(loss))
    assert relative_error(together[0], together[1]) > 1e-3
    for k in range(2):
        assert relative_error(together[k], single(rates[k])) < 1e-9


def test_no_tracer_is_left_behind_in_a_callback():
    callback = hx.PresetTimeCallback(TIMES, lambda u, p, t: p * u)
    prob = hx.ODEProblem(lambda u, p, t: -p * u, jnp.ones(1), (0.0, 1.5), callback=callback)
    loss = lambda p: jnp.sum(hx.solve(prob, p=p).us)
    with jax.checking_leaks():
        jax.jit(jax.grad(loss))(jnp.array([0.5]))
    first = jax.grad(loss)(jnp.array([0.5]))
    np.testing.assert_array_equal(jax.grad(loss)(jnp.array([0.5])), first)


def test_a_changed_captured_array_is_seen_by_the_next_call():
    captured = {"rate": jnp.array(1.0)}
    prob = hx.ODEProblem(lambda u, p, t: -captured["rate"] * u, jnp.ones(1), (0.0, 1.0), rtol=1e-8, atol=1e-8)
    for rate in (1.0, 2.0):
        captured["rate"] = jnp.array(rate)
        assert float(hx.solve(prob).us[-1, 0]) == pytest.approx(np.exp(-rate), rel=1e-6)
