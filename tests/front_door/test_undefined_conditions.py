"""A condition that is NaN is no event, and no absence of one: the solve fails and says so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hybridax as hx

AFFECT = lambda u, p, t: u + 100.0


def solve(condition, throw=True, terminate=False):
    prob = hx.ODEProblem(lambda u, p, t: -p * u, jnp.ones(1), (0.0, 2.0), jnp.asarray(1.0))
    callback = hx.ContinuousCallback(condition, AFFECT, terminate=terminate)
    return hx.solve(prob, callback=callback, throw=throw, saveat=np.array([0.5, 2.0]))


@pytest.mark.parametrize(
    "condition",
    [
        lambda u, p, t: jnp.sqrt(1.2 - t) + 0.1,  # positive, then NaN
        lambda u, p, t: jnp.log(u[0] - 2.0),  # NaN from the start
        lambda u, p, t: jnp.stack([t + 1.0, jnp.sqrt(1.2 - t) + 0.1]),  # one component of two
    ],
)
def test_a_condition_that_is_nan_ends_the_solve(condition):
    sol = solve(condition, throw=False)
    assert hx.RetCode(int(sol.retcode)) == hx.RetCode.NonFinite
    assert np.all(np.isinf(sol.events.times)) and np.all(np.isnan(sol.us[-1]))
    with pytest.raises(hx.SolveError, match="condition of a ContinuousCallback is NaN"):
        solve(condition)


def test_nan_behind_the_event_that_ends_the_solve_does_not_matter():
    sol = solve(lambda u, p, t: jnp.sqrt(u[0] - 0.4) - 0.1, terminate=True)  # root at u = 0.41, NaN below 0.4
    assert hx.RetCode(int(sol.retcode)) == hx.RetCode.Terminated
    assert float(sol.events.times[0]) == pytest.approx(-np.log(0.41), rel=1e-4)


@pytest.mark.parametrize(
    "sensealg, name",
    [
        (hx.GaussAdjoint(rtol=-1.0), "GaussAdjoint: rtol"),
        (hx.BacksolveAdjoint(atol=float("nan")), "BacksolveAdjoint: atol"),
        (hx.QuadratureAdjoint(rtol="a"), "QuadratureAdjoint: rtol"),
        (hx.QuadratureAdjoint(order=0), "QuadratureAdjoint: order"),
        (hx.GaussAdjoint(order=3.5), "GaussAdjoint: order"),
        (hx.DiscreteAdjoint(chunk=0), "DiscreteAdjoint: chunk"),
        (hx.DiscreteAdjoint(memory=-1), "DiscreteAdjoint: memory"),
        (hx.DiscreteAdjoint(checkpoints=0), "DiscreteAdjoint: checkpoints"),
    ],
)
def test_options_of_a_method_are_checked_before_the_solve(sensealg, name):
    prob = hx.ODEProblem(lambda u, p, t: -p * u, jnp.ones(1), (0.0, 2.0), jnp.asarray(1.0))
    with pytest.raises((ValueError, TypeError), match=name):
        hx.solve(prob, sensealg=sensealg)


@pytest.mark.parametrize(
    "option, message", [({"rtol": "1e-3"}, "rtol"), ({"saveat": "all"}, "saveat"), ({"saveat": 1e-9}, "rows")]
)
def test_numbers_that_are_none_or_too_many(option, message):
    prob = hx.ODEProblem(lambda u, p, t: -p * u, jnp.ones(1), (0.0, 2.0), jnp.asarray(1.0))
    with pytest.raises((ValueError, TypeError), match=message):
        hx.solve(prob, **option)
    with pytest.raises(ValueError, match="events"):
        hx.solve(prob, callback=hx.PeriodicCallback(AFFECT, 1e-8))


def test_the_gradient_of_a_solve_whose_condition_is_nan_is_no_number():
    prob = hx.ODEProblem(lambda u, p, t: -p * u, jnp.ones(1), (0.0, 2.0), jnp.asarray(1.0))
    callback = hx.ContinuousCallback(lambda u, p, t: jnp.sqrt(1.2 - t) + 0.1, AFFECT)
    gradient = jax.jit(jax.grad(lambda p: hx.solve(prob, p=p, callback=callback).us[-1, 0]))(prob.p)
    assert np.isnan(gradient)
