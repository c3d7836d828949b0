"""Failures found while running: SolveError outside jit; inside, NaN rows and gradients and a code that says why."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from methods import KINDS, METHODS

import hybridax as hx

SAVES = np.linspace(0.0, 1.0, 11)


def breaks(u, p, t):
    """NaN past the middle of the span."""
    return jnp.where(t > 0.5, jnp.nan, -p * u)


def stiff(u, p, t):
    return -1e6 * p * (u - jnp.cos(t))


def explodes(u, p, t):
    return 1.0 + p * u**2


def problem(f, **options):
    return hx.ODEProblem(f, jnp.ones(2), (0.0, 1.0), jnp.array(1.0), saveat=SAVES, **options)


FAILURES = {
    "NonFinite": problem(breaks),
    "MaxSteps": problem(stiff, max_steps=20),
}


def numbers(text):
    return [float(x) for x in re.findall(r"-?\d+\.?\d*(?:[eE][-+]?\d+)?", text)]


@pytest.mark.parametrize("code", FAILURES)
def test_a_failed_solve_raises_outside_jit_with_its_code(code):
    with pytest.raises(hx.SolveError) as error:
        hx.solve(FAILURES[code])
    assert error.value.retcode == hx.RetCode[code]
    assert "\n\n" not in str(error.value)


def test_nan_is_reported_with_the_time_and_the_state_at_which_it_appeared():
    with pytest.raises(hx.SolveError) as error:
        hx.solve(FAILURES["NonFinite"])
    found = numbers(str(error.value))
    assert any(0.45 < x < 0.55 for x in found), str(error.value)
    assert any(abs(x - np.exp(-0.5)) < 0.03 for x in found), str(error.value)


def test_running_out_of_steps_says_how_many_and_how_far():
    with pytest.raises(hx.SolveError, match="max_steps") as error:
        hx.solve(FAILURES["MaxSteps"])
    found = numbers(str(error.value))
    assert 20 in found
    assert any(0 < x < 0.9 for x in found), str(error.value)


@pytest.mark.parametrize("code", FAILURES)
def test_inside_jit_rows_after_the_failure_are_nan_and_the_code_says_why(code):
    for sol in (jax.jit(lambda u: hx.solve(FAILURES[code], u0=u))(jnp.ones(2)), hx.solve(FAILURES[code], throw=False)):
        assert hx.RetCode(int(sol.retcode)).name == code
        assert np.all(np.isnan(sol.us[-1]))
        np.testing.assert_array_equal(sol.us[0], [1.0, 1.0])


def test_rows_before_a_failure_are_kept():
    sol = hx.solve(FAILURES["NonFinite"], throw=False)
    np.testing.assert_allclose(sol.us[:5, 0], np.exp(-SAVES[:5]), rtol=1e-2)


@pytest.mark.parametrize("method", KINDS)
def test_inside_jit_every_gradient_of_a_failed_solve_or_of_a_nan_cotangent_is_nan(method):
    """One right-hand side that breaks at a given time or is stiff, so that both failures have one program."""

    def loss(u0, p, breaks, rate, weight):
        f = lambda u, p, t: jnp.where(t > breaks, jnp.nan, -rate * p * (u - jnp.cos(t)))
        sol = hx.solve(problem(f, max_steps=512), u0=u0, p=p, sensealg=METHODS[method])
        return jnp.sum(sol.us[0]) + weight * jnp.sum(sol.us[-1]), sol.retcode

    gradient = jax.jit(jax.grad(loss, (0, 1), has_aux=True))
    right = lambda got, test: all(np.all(test(x)) for x in got)
    for code, numbers in {"NonFinite": (0.5, 1.0), "MaxSteps": (2.0, 1e6), "Success": (2.0, 1.0)}.items():
        got, retcode = gradient(jnp.ones(2), jnp.array(1.0), *numbers, 0.0)
        assert hx.RetCode(int(retcode)).name == code
        assert right(got, np.isfinite if code == "Success" else np.isnan)
    # a cotangent that is not a number
    assert right(gradient(jnp.ones(2), jnp.array(1.0), 2.0, 1.0, jnp.nan)[0], np.isnan)


def test_a_failed_solve_raises_under_grad_outside_jit():
    with pytest.raises(hx.SolveError):
        jax.grad(lambda p: jnp.sum(hx.solve(FAILURES["MaxSteps"], p=p).us))(jnp.array(1.0))


@pytest.mark.parametrize("method", [name for name in KINDS if name != "discrete"])
def test_a_reverse_solve_that_fails_gives_nan_and_never_a_number(method):
    sensealg = type(METHODS[method])(max_steps=2)

    def loss(p, throw):
        prob = hx.ODEProblem(lambda u, p, t: p * jnp.sin(5 * u[::-1]), jnp.array([1.0, 0.2]), (0.0, 5.0), p)
        return jnp.sum(hx.solve(prob, sensealg=sensealg, rtol=1e-8, atol=1e-8, throw=throw).us)

    value, gradient = jax.value_and_grad(lambda p: loss(p, False))(jnp.array(1.0))
    assert np.isfinite(value) and np.isnan(gradient)
    with pytest.raises(Exception, match="(?i)reverse|adjoint|backward"):
        jax.block_until_ready(jax.grad(lambda p: loss(p, True))(jnp.array(1.0)))


def test_a_solution_that_explodes_fails_with_a_code():
    prob = hx.ODEProblem(explodes, jnp.array([1.0]), (0.0, 5.0), jnp.array(1.0))
    sol = hx.solve(prob, throw=False)
    assert hx.RetCode(int(sol.retcode)) in (hx.RetCode.StepTooSmall, hx.RetCode.NonFinite, hx.RetCode.MaxSteps)
    assert np.all(np.isnan(sol.us[-1]))


def test_only_the_lane_that_fails_is_nan_under_vmap():
    ps = jnp.array([0.0, 1.0])
    prob = hx.ODEProblem(lambda u, p, t: jnp.where(p * t > 0.5, jnp.nan, -u), jnp.ones(1), (0.0, 1.0))
    sol, gradient = jax.jit(
        jax.vmap(lambda p: (hx.solve(prob, p=p), jax.grad(lambda u: hx.solve(prob, u0=u, p=p).us[-1, 0])(jnp.ones(1))))
    )(ps)
    assert [hx.RetCode(int(c)).name for c in sol.retcode] == ["Success", "NonFinite"]
    assert np.all(np.isfinite(sol.us[0])) and np.all(np.isnan(sol.us[1, -1]))
    assert np.isfinite(gradient[0, 0]) and np.isnan(gradient[1, 0])


def test_a_successful_solve_says_so():
    sol = hx.solve(hx.ODEProblem(lambda u, p, t: -u, jnp.ones(1), (0.0, 1.0)))
    assert hx.RetCode(int(sol.retcode)).name == "Success"


def nan_in_the_u_part(lam, u, p, t):
    return np.full_like(lam, np.nan), np.ones(())


def nan_along_u(lam, u, p, t):
    return jnp.full_like(lam, jnp.nan), jnp.ones(())


RESET = hx.PresetTimeCallback([0.5], lambda u, p, t: jnp.ones_like(u), save_positions=(False, False))


@pytest.mark.parametrize("method", ["discrete", "gauss"])
@pytest.mark.parametrize("callback", [None, RESET])
@pytest.mark.parametrize("vjp", ["host", "hand"])
def test_a_product_along_u_that_is_nan_is_told_where_that_along_p_hides_it(method, callback, vjp):
    """Forgetful: the p part ignores lam, and an affect that resets the state hands nothing of lam on."""
    host = hx.HostVJP(lambda u, p, t: -p * u, nan_in_the_u_part, in_place=False)
    f, own = (host, None) if vjp == "host" else (lambda u, p, t: -p * u, hx.HandWrittenVJP(vjp=nan_along_u))

    def loss(p, weight, throw):
        prob = hx.ODEProblem(f, jnp.ones(2), (0.0, 1.0), p, vjp=own, callback=callback)
        sol = hx.solve(prob, sensealg=METHODS[method], saveat=[1.0], throw=throw)
        return weight * jnp.sum(sol.us)

    gradient = jax.jit(jax.grad(loss), static_argnums=2)
    assert np.isnan(gradient(jnp.array(1.0), 1.0, False))
    with pytest.raises(Exception, match="reverse (pass|solve).*not finite"):
        jax.block_until_ready(jax.grad(loss)(jnp.array(1.0), 1.0, True))


def test_nan_that_comes_from_the_loss_is_nan_and_no_failure():
    def loss(p):
        sol = hx.solve(hx.ODEProblem(lambda u, p, t: -p * u, jnp.ones(2), (0.0, 1.0), p))
        return jnp.nan * jnp.sum(sol.us)

    assert np.isnan(jax.grad(loss)(jnp.array(1.0)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 2.0])
def test_a_traced_event_time_that_is_none_is_an_invalid_time(bad):
    def solve(time):
        jump = hx.PresetTimeCallback(jnp.stack([time, jnp.asarray(0.7)]), lambda u, p, t: u + 1.0)
        return hx.solve(hx.ODEProblem(lambda u, p, t: -u, jnp.ones(1), (0.0, 1.0), callback=jump))

    codes = jax.jit(jax.vmap(lambda time: solve(time).retcode))(jnp.array([bad, 0.3]))
    assert [hx.RetCode(int(c)).name for c in codes] == ["InvalidTime", "Success"]
    gradients = jax.jit(jax.vmap(jax.grad(lambda time: jnp.sum(solve(time).us[-1]))))(jnp.array([bad, 0.3]))
    assert np.isnan(gradients[0]) and np.isfinite(gradients[1])
