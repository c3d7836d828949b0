"""The public names, problems and their options."""

import jax.numpy as jnp
import numpy as np
import pytest

import hybridax as hx


def test_every_public_name_exists_and_is_documented():
    for name in hx.__all__:
        assert getattr(hx, name).__doc__, name


@pytest.mark.parametrize(
    "name",
    "ODEProblem solve Solution SolveError RetCode Tsit5 Euler PeriodicCallback PresetTimeCallback CallbackSet "
    "BacksolveAdjoint InterpolatingAdjoint QuadratureAdjoint DiscreteAdjoint JaxVJP MLP fit".split(),
)
def test_the_contracts_names_are_at_the_front_door(name):
    assert name in hx.__all__
    assert hasattr(hx, name)


def decay(u, p, t):
    return -p * u


PROB = hx.ODEProblem(decay, jnp.ones(1), (0.0, 1.0), jnp.array(1.0), saveat=[0.5, 1.0], rtol=1e-8, atol=1e-8)


def test_an_option_of_the_call_wins_over_one_of_the_problem():
    assert hx.solve(PROB).ts.tolist() == [0.5, 1.0]
    assert hx.solve(PROB, saveat=[0.25]).ts.tolist() == [0.25]


def test_remake_and_overrides_of_solve_are_the_same():
    changes = {"u0": jnp.array([3.0]), "p": jnp.array(2.0), "tspan": (0.0, 2.0)}
    by_remake, by_call = hx.solve(PROB.remake(**changes)), hx.solve(PROB, **changes)
    np.testing.assert_array_equal(by_remake.us, by_call.us)
    np.testing.assert_allclose(by_call.us[:, 0], 3 * np.exp(-2 * by_call.ts), rtol=1e-6)


def test_remake_leaves_the_problem_as_it_was():
    PROB.remake(p=jnp.array(5.0), saveat=[0.1])
    assert float(PROB.p) == 1.0
    assert hx.solve(PROB).ts.tolist() == [0.5, 1.0]


def test_return_codes_are_integers_with_names():
    assert {"Success", "Terminated", "MaxSteps", "NonFinite", "StepTooSmall", "MaxEvents"} <= set(hx.RetCode.__members__)
    assert isinstance(hx.RetCode.Success, int)


def test_preset_times_may_be_given_by_keyword():
    callback = hx.PresetTimeCallback(times=[0.5], affect=lambda u, p, t: u + 1.0)
    assert hx.solve(PROB, callback=callback, saveat=[1.0]).ts.tolist() == [0.5, 0.5, 1.0]
