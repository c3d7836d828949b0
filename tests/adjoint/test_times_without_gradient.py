"""Times that have no derivative: of an event that grazes, of a boolean condition, of steps. Loud, never zeros."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from methods import ALL, TWO
from reference import gradient

import hybridax as hx

EITHER = pytest.mark.parametrize("method", TWO)
G, TOP = 10.0, 5.0


# ------------------------------------------------------------------ a ball whose apex just touches a ceiling
def fall(u, p, t):
    return jnp.stack([u[1], jnp.full_like(u[1], -G)])


def fall_back(u, p, t):
    return u.at[1].multiply(-0.5)


def ball(ceiling, method="discrete"):
    """Thrown at v = 10, top after t = 1 at height 5; in steps of 1/4, on which every number is exact."""
    callback = hx.CallbackSet(
        hx.PresetTimeCallback([0.5], lambda u, p, t: u), hx.ContinuousCallback(lambda u, p, t: u[0] - p, fall_back)
    )
    prob = hx.ODEProblem(fall, jnp.array([0.0, 10.0], ceiling.dtype), (0.0, 1.75), ceiling)
    return hx.solve(
        prob, hx.RK4(adaptive=False), dt0=0.25, callback=callback, max_events=2, max_steps=32, sensealg=ALL[method]
    )


def last_height(ceiling, method):
    sol = ball(ceiling, method)
    return sol.us[jnp.sum(sol.valid) - 1, 0]


def test_the_forward_solve_of_a_touch_succeeds():
    sol = ball(jnp.asarray(TOP))
    assert hx.RetCode(int(sol.retcode)).name == "Success"
    np.testing.assert_allclose(sol.events.times[:2], [0.5, 1.0], atol=1e-7)


@EITHER
def test_the_gradient_through_a_touch_is_refused_with_the_callback_and_the_time(method):
    for ceiling in (TOP, TOP * (1 - 1e-15)):
        with pytest.raises(Exception, match=r"t = (1|0\.9999999\d*) of callback 1 .*grazes"):
            jax.block_until_ready(jax.grad(last_height)(jnp.asarray(ceiling), method))


@pytest.mark.parametrize(
    "dtype, method", [(np.float32, "discrete"), (np.float64, "interpolating"), (np.float64, "direct")]
)
def test_inside_jit_the_gradient_through_a_touch_is_nan(dtype, method):
    assert np.isnan(jax.jit(jax.grad(lambda c: last_height(c, method)))(jnp.asarray(TOP, dtype)))


@EITHER
def test_a_flat_but_clean_crossing_keeps_its_gradient(method):
    """A ceiling 1e-8 below the top is hit at speed w = sqrt(2 g (top - c)), at s = (10 - w) / g, and left at -w / 2.

    With r = 7/4 - s: height = c - w r / 2 - g r^2 / 2; dw/dc = -g / w, ds/dc = 1 / w, dr/dc = -1 / w.
    """
    ceiling = TOP * (1 - 1e-8)
    w = np.sqrt(2 * G * (TOP - ceiling))
    r = 1.75 - (10 - w) / G
    slope = 1 + G * r / (2 * w) + 0.5 + G * r / w
    got = jax.grad(last_height)(jnp.asarray(ceiling), method)
    assert float(got) == pytest.approx(slope, rel=1e-6)


# ------------------------------------------------------------------ a boolean condition
def decay(u, p, t):
    return -p * u


def halved_below(positions=(True, False), **options):
    callback = hx.DiscreteCallback(
        lambda u, p, t: (u[0] < 0.7) & (u[0] > 0.5), lambda u, p, t: p * u / 2, save_positions=positions, **options
    )
    return hx.ODEProblem(
        decay, jnp.array([1.0]), (0.0, 1.0), jnp.array(0.9), callback=callback, rtol=1e-10, atol=1e-10, max_events=4
    )


def last(x, sol):
    return x[jnp.sum(sol.valid) - 1]


def event_time(p, method):
    return hx.solve(halved_below(), p=p, sensealg=ALL[method]).events.times[0]


def end_time(p, method):
    sol = hx.solve(halved_below(terminate=True), p=p, sensealg=ALL[method])
    return last(sol.ts, sol)


P = jnp.array(0.9)


@pytest.mark.parametrize("loss, method", [(event_time, "interpolating"), (end_time, "discrete")])
def test_the_time_of_a_boolean_condition_is_refused(loss, method):
    with pytest.raises(Exception, match=r"(?s)time of the event at t = 0\.\d+ of callback 0.*ContinuousCallback"):
        jax.block_until_ready(jax.grad(loss)(P, method))
    assert np.isnan(jax.jit(jax.grad(lambda p: loss(p, method)))(P))


@EITHER
def test_rows_of_a_boolean_condition_take_its_time_as_a_constant(method):
    """u0 exp(-p t) to the event at s, p / 2 of it afterwards."""
    solve = lambda p, u0: hx.solve(halved_below((True, True)), p=p, u0=u0, sensealg=ALL[method])
    s = float(solve(P, jnp.array([1.0])).events.times[0])

    def exact(p, u0):
        left = u0 * np.exp(-p * s)
        return u0**2 + 2 * left**2 + 3 * (p * left / 2) ** 2 + 4 * (p * left / 2 * np.exp(-p * (1 - s))) ** 2

    weights = jnp.array([1.0, 2.0, 3.0, 4.0])
    loss = lambda p, u0: jnp.sum(weights * solve(p, u0).us[:4, 0] ** 2)
    dp, du = jax.grad(loss, (0, 1))(P, jnp.array([1.0]))
    expected = gradient(lambda x: exact(*x), [0.9, 1.0])
    np.testing.assert_allclose([float(dp), float(du[0])], expected, rtol=1e-7)


# ------------------------------------------------------------------ the ends of steps
def every_step(p, u0, t1, method):
    """u' = -p u; halved when it falls to 0.7; a row for every step, and none that the event asked for."""
    callback = hx.ContinuousCallback(lambda u, p, t: u[0] - 0.7, lambda u, p, t: u / 2, save_positions=(False, False))
    prob = hx.ODEProblem(decay, u0, (0.0, t1), p, callback=callback, save_everystep=True, max_events=2, max_steps=64)
    return hx.solve(prob, rtol=1e-8, atol=1e-8, sensealg=ALL[method])


@EITHER
def test_rows_of_every_step_are_taken_at_constant_times_but_on_events_and_at_the_end(method):
    u0, t1 = jnp.array([1.0]), jnp.asarray(1.0)
    sol = every_step(P, u0, t1, method)
    valid = np.asarray(sol.valid)
    ts, sides, tau = np.asarray(sol.ts)[valid], np.asarray(sol.sides)[valid], np.log(1 / 0.7) / 0.9
    assert np.all(np.diff(ts) > 0) and ts[0] == 0 and ts[-1] == 1.0
    assert np.sum(sides == -1) == 1 and ts[sides == -1] == pytest.approx(tau)
    weights = np.cos(np.arange(valid.size))

    def exact(x):
        p, u0, t1 = x
        tau_x = np.log(u0 / 0.7) / p
        times = [*ts[:-1], t1]
        before, after = [u0 * np.exp(-p * t) for t in times], [0.35 * np.exp(-p * (t - tau_x)) for t in times]
        on = lambda j: 0.7 if sides[j] == -1 else before[j] if ts[j] < tau else after[j]
        return sum(weights[j] * on(j) ** 2 for j in range(ts.size))

    def loss(p, u0, t1):
        us = every_step(p, u0, t1, method).us[:, 0]
        return jnp.sum(weights * jnp.where(valid, us, 0.0) ** 2)

    value, got = jax.value_and_grad(loss, (0, 1, 2))(P, u0, t1)
    x = [0.9, 1.0, 1.0]
    assert float(value) == pytest.approx(float(exact(x)), rel=1e-6)
    np.testing.assert_allclose(np.ravel([got[0], got[1][0], got[2]]), gradient(exact, x), rtol=2e-6)


def test_where_jax_differentiates_the_loop_the_time_of_a_boolean_condition_is_nan_and_rows_are_not():
    solve = lambda p: hx.solve(halved_below(), p=p, max_steps=64, sensealg=ALL["direct"])
    assert np.isnan(jax.grad(lambda p: solve(p).events.times[0])(P))
    assert np.isfinite(jax.grad(lambda p: solve(p).us[2, 0])(P))


def test_the_times_of_every_step_are_refused():
    time = lambda p, method: every_step(p, jnp.array([1.0]), 1.0, method).ts[1]
    with pytest.raises(TypeError, match="save_everystep.*saveat"):
        jax.grad(time)(P, "discrete")
    assert np.isnan(jax.jacfwd(time)(P, "forward"))
