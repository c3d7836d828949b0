"""What `adjoint_sensitivities` tells of the reverse pass: its work, the size of lam, how it ended, the state gone back."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from counting import Counter
from methods import CONTINUOUS, KINDS, METHODS, TWO

import hybridax as hx

EVERY = pytest.mark.parametrize("method", KINDS)
TIGHT = {"rtol": 1e-10, "atol": 1e-10}


def ones(u, p, t, i):
    return jnp.ones_like(u)


def growth(rate, size=1):
    return hx.ODEProblem(lambda u, p, t: p * u, jnp.ones(size), (0.0, 2.0), jnp.asarray(rate))


def at_end(prob, method, **options):
    return hx.adjoint_sensitivities(prob, t=[2.0], dgdu=ones, sensealg=METHODS[method], **{**TIGHT, **options})


# ------------------------------------------------------------------ the size of lam
@pytest.mark.parametrize("method, size", [*((m, 1) for m in KINDS), ("discrete", 9), ("interpolating", 9)])
def test_the_largest_costate_is_that_of_the_closed_form(method, size):
    """lam = exp(p (2 - t)): largest at the start where the state grows, and 1, at the end, where it decays."""
    for rate, largest in ((0.7, np.exp(1.4)), (-0.7, 1.0)):
        diagnostics = at_end(growth(rate, size), method).diagnostics
        assert float(diagnostics.largest_costate) == pytest.approx(largest, rel=1e-8)


@pytest.mark.parametrize("method, size", [("discrete", 1), ("discrete", 9), ("quadrature", 1)])
def test_the_largest_costate_is_found_on_either_side_of_an_event(method, size):
    """lam = exp(2 - t) after the event at 1, b times that before; scaled down to b at first, and less after a second."""
    for b, largest in ((0.1, np.exp(1.0)), (10.0, 10 * np.exp(1.0))):
        prob = growth(-1.0, size).remake(f=lambda u, p, t: jnp.where(t < 1, -p, p) * -u)
        callback = hx.PresetTimeCallback([1.0], lambda u, p, t, b=b: b * u, save_positions=(False, False))
        diagnostics = at_end(prob, method, callback=callback).diagnostics
        assert float(diagnostics.largest_costate) == pytest.approx(largest, rel=1e-6)


@EVERY
def test_the_costate_of_the_cost_itself_is_not_counted(method):
    """lam = 0.01 (exp(p (2 - t)) - 1) / p for the integral of 0.01 u, whose own cotangent is 1."""
    options = {"running_cost": lambda u, p, t: 0.01 * u[0], "sensealg": METHODS[method], **TIGHT}
    diagnostics = hx.adjoint_sensitivities(growth(0.7), **options).diagnostics
    assert float(diagnostics.largest_costate) == pytest.approx(0.01 * (np.exp(1.4) - 1) / 0.7, rel=1e-7)


# ------------------------------------------------------------------ work
@EVERY
def test_steps_and_evaluations_grow_as_tolerances_tighten(method):
    prob = growth(0.0).remake(f=lambda u, p, t: jnp.cos(3 * t) * u + p)
    loose, tight = (at_end(prob, method, rtol=x, atol=x).diagnostics for x in (1e-4, 1e-9))
    assert 0 < int(loose.accepted) < int(tight.accepted)
    assert 0 < int(loose.evaluations) < int(tight.evaluations)
    assert (int(tight.rejected) == 0) if method == "discrete" else (int(tight.rejected) >= 0)


def test_the_steps_of_a_discrete_adjoint_are_those_of_the_solve():
    diagnostics = at_end(growth(0.7), "discrete").diagnostics
    assert int(diagnostics.accepted) == int(diagnostics.solution.stats.accepted)


@pytest.mark.parametrize("method", ["backsolve", "discrete"])
def test_evaluations_are_the_products_that_ran(method):
    """Without parameters, and with too many components for Jacobians, each is one product with df/du."""
    counter = Counter(9)
    prob = hx.ODEProblem(lambda u, p, t: counter.tick(jnp.sin(3 * t) * u[::-1]), jnp.ones(9), (0.0, 2.0))
    callback = hx.PresetTimeCallback([0.7], lambda u, p, t: 2 * u, save_positions=(False, False))
    run = lambda: at_end(prob, method, callback=callback, rtol=1e-7, atol=1e-7)
    run()
    counter.reset()
    diagnostics = jax.block_until_ready(run()).diagnostics
    jax.effects_barrier()
    assert counter.reverse == int(diagnostics.evaluations)


# ------------------------------------------------------------------ the state gone back
STIFF = hx.ODEProblem(lambda u, p, t: p * u, jnp.ones(1), (0.0, 2.0), jnp.array(-50.0), rtol=1e-6, atol=1e-6)
MANY = np.linspace(0.0, 2.0, 41)


def stiff(method, **options):
    return hx.adjoint_sensitivities(STIFF, t=MANY, dgdu=ones, sensealg=method, **options)


def stiff_gradient(method):
    return jax.grad(lambda p: jnp.sum(hx.solve(STIFF, p=p, saveat=MANY, sensealg=method).us))(STIFF.p)


def exact_stiff_gradient():
    return np.sum(MANY * np.exp(-50 * MANY))


def test_a_state_that_cannot_go_back_is_seen_by_its_distance_from_the_record():
    """y' = -50 y: errors grow by exp(100) on the way back, by exp(2.5) between saved rows."""
    free, reset = (stiff(hx.BacksolveAdjoint(checkpointing=c)) for c in (False, True))
    assert float(free.diagnostics.reconstruction_error) > 1e20
    assert float(reset.diagnostics.reconstruction_error) < 1e2
    assert abs(float(free.dp)) > 1e3 * exact_stiff_gradient()
    np.testing.assert_allclose(reset.dp, exact_stiff_gradient(), rtol=1e-3)


@pytest.mark.parametrize("method", [m for m in KINDS if m != "backsolve"])
def test_methods_that_do_not_go_back_have_no_reconstruction_error(method):
    assert at_end(growth(0.7), method).diagnostics.reconstruction_error is None


def test_the_reconstruction_error_is_what_the_jump_of_an_event_leaves_to_the_record():
    """The right limit is compared before the state is reset to the left one: forgetting a state is no error."""
    prob = growth(0.7, 2)
    callback = hx.PresetTimeCallback([1.0], lambda u, p, t: u.at[0].set(5.0))
    diagnostics = at_end(prob, "backsolve_without_checkpoints", callback=callback).diagnostics
    assert 0 < float(diagnostics.reconstruction_error) < 10


@pytest.mark.parametrize("run", [stiff, stiff_gradient], ids=["adjoint_sensitivities", "jax.grad"])
def test_a_reconstruction_past_its_tolerance_warns_and_says_what_to_do(run):
    told = "(?s)backwards.*reconstruction_tolerance=100.*InterpolatingAdjoint.*checkpointing=True"
    with pytest.warns(RuntimeWarning, match=told):
        jax.block_until_ready(run(hx.BacksolveAdjoint(checkpointing=False, reconstruction_tolerance=100.0)))
        jax.effects_barrier()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.block_until_ready(run(hx.BacksolveAdjoint(checkpointing=True, reconstruction_tolerance=100.0)))
        jax.block_until_ready(run(hx.BacksolveAdjoint(checkpointing=False)))
        jax.effects_barrier()


# ------------------------------------------------------------------ how it ended
def waves(method, **options):
    prob = hx.ODEProblem(lambda u, p, t: p * jnp.sin(5 * u[::-1]), jnp.array([1.0, 0.2]), (0.0, 5.0), jnp.array(1.0))
    return hx.adjoint_sensitivities(prob, dgdu=ones, sensealg=method, rtol=1e-8, atol=1e-8, **options)


@pytest.mark.parametrize("method", [m for m in CONTINUOUS if m in KINDS])
def test_a_reverse_solve_that_fails_raises_and_without_throw_gives_nan_and_a_code(method):
    sensealg = type(METHODS[method])(max_steps=2)
    with pytest.raises(hx.SolveError, match=f"the reverse solve of {type(sensealg).__name__} failed"):
        waves(sensealg)
    du0, dp, diagnostics = waves(sensealg, throw=False)
    assert hx.RetCode(int(diagnostics.retcode)) == hx.RetCode.MaxSteps
    assert np.all(np.isnan(du0)) and np.isnan(dp)


@pytest.mark.parametrize("method", TWO)
def test_a_cost_derivative_that_is_not_finite_raises(method):
    nan = {"dgdu": lambda u, p, t, i: jnp.nan * u, "sensealg": METHODS[method]}
    with pytest.raises(hx.SolveError, match="reverse.*not finite"):
        hx.adjoint_sensitivities(growth(0.7), **nan)
    du0, _, diagnostics = hx.adjoint_sensitivities(growth(0.7), **nan, throw=False)
    assert hx.RetCode(int(diagnostics.retcode)) == hx.RetCode.NonFinite
    assert np.all(np.isnan(du0))


@pytest.mark.parametrize("method", TWO)
def test_a_grazing_event_raises_and_names_its_time(method):
    """A ball whose top, at t = 1, just touches a ceiling; in steps of 1/4, on which every number is exact."""
    prob = hx.ODEProblem(lambda u, p, t: jnp.stack([u[1], -10.0 + 0 * u[1]]), jnp.array([0.0, 10.0]), (0.0, 1.75))
    ceiling = hx.ContinuousCallback(lambda u, p, t: u[0] - 5.0, lambda u, p, t: u.at[1].multiply(-0.5))
    options = {"dgdu": ones, "callback": ceiling, "sensealg": METHODS[method], "dt0": 0.25, "max_steps": 32}
    options["solver"] = hx.RK4(adaptive=False)
    with pytest.raises(hx.SolveError, match=r"t = (1|0\.9999999\d*) of callback 0 .* grazes") as error:
        hx.adjoint_sensitivities(prob, **options)
    assert error.value.retcode == hx.RetCode.Grazing
    diagnostics = jax.jit(lambda: hx.adjoint_sensitivities(prob, **options))().diagnostics
    assert hx.RetCode(int(diagnostics.retcode)) == hx.RetCode.Grazing


def test_the_time_of_a_boolean_condition_is_refused():
    callback = hx.DiscreteCallback(lambda u, p, t: u[0] > 2.0, lambda u, p, t: u / 2)
    with pytest.raises(hx.SolveError, match="depends on the time of"):
        hx.adjoint_sensitivities(growth(0.7), dgdt=lambda u, p, t, i: 1.0 + 0 * t, callback=callback)


def test_a_forward_solve_that_fails_raises_what_solve_raises():
    with pytest.raises(hx.SolveError, match="max_steps=3") as error:
        at_end(growth(0.7), "discrete", max_steps=3)
    assert error.value.retcode == hx.RetCode.MaxSteps
    diagnostics = at_end(growth(0.7), "discrete", max_steps=3, throw=False).diagnostics
    assert hx.RetCode(int(diagnostics.retcode)) == hx.RetCode.MaxSteps
