"""`adjoint_sensitivities`: equal to the gradient of the same loss, to oracles and to closed forms, by every method."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from counting import compilations
from methods import METHODS, TWO
from problems.case import flat, relative_error
from problems.evaluate import evaluate
from problems.known_events import C7
from problems.oracles import ORACLES
from problems.smooth import M2
from problems.state_events import BOUNCING_BALL

import hybridax as hx

EVERY = pytest.mark.parametrize("method", METHODS)
EITHER = pytest.mark.parametrize("method", TWO)
TIGHT = {"rtol": 1e-10, "atol": 1e-10}


def ones(u, p, t, i):
    return jnp.ones_like(u)


def sensitivities(case, method, **costs):
    options = {"rtol": case.tolerance, "atol": case.tolerance, **case.options}
    if case.callback is not None:
        options["callback"] = case.callback(case.problem.p)
    return hx.adjoint_sensitivities(case.problem, sensealg=METHODS[method], **options, **costs)


# ------------------------------------------------------------------ against oracles and jax.grad
LOSSES = {  # a case, one of its losses, and the derivative of that by a row
    "lotka_volterra": (ORACLES["lotka_volterra"], "sum", ones),
    "a jump that writes parameters": (C7, "mse", lambda u, p, t, i: u - 1.0),
    "bouncing ball": (BOUNCING_BALL, "sum", lambda u, p, t, i: jnp.stack([2 * u[0], jnp.full((), 0.1)])),
}


@EVERY
@pytest.mark.parametrize("name", LOSSES)
def test_sensitivities_match_the_oracle(name, method):
    case, loss, dgdu = LOSSES[name]
    du0, dp, diagnostics = sensitivities(case, method, dgdu=dgdu)
    gold = case.gold[loss]
    assert relative_error(dp, gold.grad_p) < 1e-7
    assert relative_error(du0, gold.grad_u0) < 1e-7
    assert diagnostics.retcode == hx.RetCode.Success
    assert int(np.sum(diagnostics.solution.valid)) == case.rows


@pytest.mark.parametrize("method", [*TWO, "backsolve"])
@pytest.mark.parametrize("name", ["a jump that writes parameters", "bouncing ball"])
def test_sensitivities_are_jax_grad_of_the_same_loss_to_rounding(name, method):
    case, loss, dgdu = LOSSES[name]
    du0, dp, _ = sensitivities(case, method, dgdu=dgdu)
    got = evaluate(case, method, loss)
    assert relative_error(dp, got.grad_p) < 1e-12
    assert relative_error(du0, got.grad_u0) < 1e-12


@EITHER
def test_a_cost_that_reads_parameters_adds_its_own_derivative(method):
    """Case M2, the sum of u_1^2 + p_1 over rows; derivatives as functions, and as arrays."""
    case, gold = M2["by array"], M2["by array"].gold["sum"]
    first = lambda x: jnp.zeros_like(x).at[0].set(1.0)
    by_functions = sensitivities(
        case, method, dgdu=lambda u, p, t, i: 2 * u * first(u), dgdp=lambda u, p, t, i: first(p)
    )
    us = np.asarray(by_functions.diagnostics.solution.us)
    by_arrays = sensitivities(case, method, dgdu=2 * us * np.array([1, 0]), dgdp=9 * np.array([1.0, 0, 0, 0]))
    for found in (by_functions, by_arrays):
        assert relative_error(found.dp, gold.grad_p) < 1e-6
        assert relative_error(found.du0, gold.grad_u0) < 1e-6
    np.testing.assert_allclose(by_arrays.dp, by_functions.dp, rtol=1e-14)


@EITHER
def test_the_row_index_counts_saved_limits_as_well(method):
    """Rows 0, left and right limit, 2: weights 1, 10, 100, 1000 on y' = p y, y+ = 2 y-."""
    prob = hx.ODEProblem(lambda u, p, t: p * u, jnp.array([1.5]), (0.0, 2.0), jnp.array(0.3))
    callback = hx.PresetTimeCallback([1.0], lambda u, p, t: 2.0 * u)
    weights = jnp.array([1.0, 10.0, 100.0, 1000.0])
    du0, dp, _ = hx.adjoint_sensitivities(
        prob, callback=callback, dgdu=lambda u, p, t, i: weights[i] + 0 * u, sensealg=METHODS[method], **TIGHT
    )
    a, b = np.exp(0.3), np.exp(0.6)
    np.testing.assert_allclose(du0, [1 + 10 * a + 200 * a + 2000 * b], rtol=1e-8)
    np.testing.assert_allclose(dp, 1.5 * (210 * a + 4000 * b), rtol=1e-8)


# ------------------------------------------------------------------ running costs, with events
WEIGHED = {"a": jnp.array(-0.4), "b": jnp.array(1.3), "w": jnp.array(0.7)}
MIDDLES = np.array([0.5, 1.5, 2.5])


def weighed_cost(y0, p, row_weight):
    """y' = a y; at 1 and 2, y+ = b y- and w+ = w- / 2: int w y^2 over (0, 3), and row_weight p_w y^2 at the middles."""
    total = 0.0
    for k in range(3):
        a, start = p["a"], (y0 * p["b"] ** k) ** 2
        total += p["w"] / 2**k * start * (jnp.exp(2 * a * (k + 1)) - jnp.exp(2 * a * k)) / (2 * a)
        total += row_weight * p["w"] * start * jnp.exp(2 * a * MIDDLES[k])
    return total


def halve(u, p, t):
    return p["b"] * u, {**p, "w": p["w"] / 2}


@EVERY
@pytest.mark.parametrize("row_weight", [0.0, 2.0], ids=["integral", "integral and rows"])
def test_a_running_cost_with_parameters_that_events_write_has_the_gradient_of_its_closed_form(row_weight, method):
    prob = hx.ODEProblem(lambda u, p, t: p["a"] * u, jnp.array([1.2]), (0.0, 3.0), WEIGHED)
    callback = hx.PeriodicCallback(halve, 1.0, affects_params=True, save_positions=(False, False))
    rows = {}
    if row_weight:
        rows["dgdu"] = lambda u, p, t, i: 2 * row_weight * p["w"] * u
        rows["dgdp"] = lambda u, p, t, i: {"a": jnp.zeros(()), "b": jnp.zeros(()), "w": row_weight * u[0] ** 2}
    du0, dp, diagnostics = hx.adjoint_sensitivities(
        prob,
        t=MIDDLES,
        running_cost=lambda u, p, t: p["w"] * u[0] ** 2,
        callback=callback,
        sensealg=METHODS[method],
        **rows,
        **TIGHT,
    )
    exact_du0, exact_dp = jax.grad(weighed_cost, (0, 1))(1.2, WEIGHED, row_weight)
    assert set(dp) == set(WEIGHED)
    np.testing.assert_allclose(du0[0], exact_du0, rtol=1e-8)
    np.testing.assert_allclose(flat(dp), flat(exact_dp), rtol=1e-8)
    np.testing.assert_allclose(diagnostics.solution.cost, weighed_cost(1.2, WEIGHED, 0.0), rtol=1e-8)


def sawtooth_cost(y0, p, time_weight):
    """y' = v; at y = c, y+ = 0: int w y^2 over (0, 5), and time_weight times the sum of squares of the event times."""
    v, c, w = p
    first, period, total = (c - y0) / v, c / v, w * (c**3 - y0**3) / (3 * v)
    count = 1 + int((5.0 - first) // period)
    rest = 5.0 - first - (count - 1) * period
    total += w * ((count - 1) * c**3 / (3 * v) + v**2 * rest**3 / 3)
    return total + time_weight * sum((first + k * period) ** 2 for k in range(count))


@EVERY
def test_a_running_cost_and_the_times_of_roots_have_the_gradient_of_their_closed_form(method):
    """Rows are the left limits of the events, and padding."""
    p = jnp.array([1.1, 1.7, 0.6])
    prob = hx.ODEProblem(lambda u, p, t: p[:1] + 0 * u, jnp.array([0.4]), (0.0, 5.0), p)
    callback = hx.ContinuousCallback(lambda u, p, t: u[0] - p[1], lambda u, p, t: 0 * u, save_positions=(True, False))
    du0, dp, diagnostics = hx.adjoint_sensitivities(
        prob,
        t=np.zeros(0),
        dgdt=lambda u, p, t, i: 0.2 * 2 * t,
        running_cost=lambda u, p, t: p[2] * u[0] ** 2,
        callback=callback,
        max_events=6,
        sensealg=METHODS[method],
        **TIGHT,
    )
    assert diagnostics.solution.valid.tolist() == [True] * 3 + [False] * (len(diagnostics.solution.valid) - 3)
    exact_du0, exact_dp = jax.grad(sawtooth_cost, (0, 1))(0.4, tuple(p), 0.2)
    np.testing.assert_allclose(du0[0], exact_du0, rtol=1e-7)
    np.testing.assert_allclose(dp, exact_dp, rtol=1e-7)


# ------------------------------------------------------------------ structures, transformations
class NumpyData:
    values = np.ones((2, 1))


def test_gradients_come_in_the_structures_of_u0_and_p_with_none_where_nothing_differentiates():
    p = {"rate": jnp.array(0.5), "order": 2, "table": jnp.arange(3)}
    prob = hx.ODEProblem(lambda u, p, t: {"x": -p["rate"] * u["x"] ** p["order"]}, {"x": jnp.ones(2)}, (0.0, 1.0), p)
    du0, dp, _ = hx.adjoint_sensitivities(
        prob,
        t=[1.0],
        dgdu=lambda u, p, t, i: {"x": 2 * u["x"]},
        dgdp=lambda u, p, t, i: {"rate": p["rate"], "order": None, "table": None},
        **TIGHT,
    )
    # x(t) = x0 / (1 + rate x0 t), the loss is x . x + rate^2 / 2
    assert dp["order"] is None and dp["table"] is None
    np.testing.assert_allclose(du0["x"], 2 / 1.5 / 1.5**2 * np.ones(2), rtol=1e-7)
    np.testing.assert_allclose(dp["rate"], 2 * 2 / 1.5 * (-1 / 1.5**2) + 0.5, rtol=1e-7)


def test_a_complex_state_takes_cotangents_in_the_convention_of_jax():
    prob = hx.ODEProblem(lambda u, p, t: p * u, jnp.array([1.0 + 0.5j]), (0.0, 1.0), jnp.array(-0.3 + 2.0j), **TIGHT)
    target = jnp.array([0.2 - 0.1j])
    loss = lambda u: jnp.sum(jnp.abs(u - target) ** 2)
    _, dp, _ = hx.adjoint_sensitivities(prob, t=[1.0], dgdu=lambda u, p, t, i: jax.grad(loss)(u))
    expected = jax.grad(lambda p: loss(hx.solve(prob, p=p, saveat=[1.0]).us[0]))(prob.p)
    np.testing.assert_allclose(dp, expected, rtol=1e-12)


def decay_rows(p, method="discrete", **options):
    prob = hx.ODEProblem(lambda u, p, t: jnp.stack([u[1], -p * jnp.sin(u[0])]), jnp.array([1.0, 0.0]), (0.0, 2.0), p)
    return hx.adjoint_sensitivities(
        prob, t=np.linspace(0, 2, 5), dgdu=lambda u, p, t, i: 2 * u, sensealg=METHODS[method], **options
    )


@EITHER
def test_under_jit_and_vmap_every_solve_has_its_own_sensitivities_and_counts(method):
    ps = jnp.array([0.5, 9.0])
    alone = [decay_rows(p, method) for p in ps]
    together = jax.jit(jax.vmap(lambda p: decay_rows(p, method)))(ps)
    for name in ("accepted", "rejected", "evaluations", "largest_costate"):
        one_by_one = [getattr(x.diagnostics, name) for x in alone]
        if name != "evaluations" or method != "discrete":  # lanes transpose their rows in lockstep
            np.testing.assert_allclose(getattr(together.diagnostics, name), one_by_one, rtol=1e-12)
    np.testing.assert_allclose(together.dp, [x.dp for x in alone], rtol=1e-10)
    np.testing.assert_allclose(together.du0, [x.du0 for x in alone], rtol=1e-10)


def test_a_tangent_passes_through_as_through_jax_grad():
    grad = jax.grad(lambda p: decay_loss(p))
    expected = jax.jvp(grad, (jnp.array(2.0),), (jnp.ones(()),))[1]
    got = jax.jvp(lambda p: decay_rows(p).dp, (jnp.array(2.0),), (jnp.ones(()),))[1]
    np.testing.assert_allclose(got, expected, rtol=1e-10)


def decay_loss(p):
    prob = hx.ODEProblem(lambda u, p, t: jnp.stack([u[1], -p * jnp.sin(u[0])]), jnp.array([1.0, 0.0]), (0.0, 2.0), p)
    return jnp.sum(hx.solve(prob, saveat=np.linspace(0, 2, 5)).us ** 2)


def test_other_numbers_compile_nothing_anew():
    decay_rows(jnp.array(1.0), rtol=1e-4)
    with compilations() as count:
        decay_rows(jnp.array(3.0), rtol=1e-5)
    assert count.count == 0


# ------------------------------------------------------------------ what is refused
ONE = hx.ODEProblem(lambda u, p, t: -p * u, jnp.ones(1), (0.0, 1.0), jnp.array(1.0))


@pytest.mark.parametrize(
    "options, match",
    [
        ({}, "no cost"),
        ({"t": [1.0], "saveat": [1.0], "dgdu": ones}, "t and saveat"),
        ({"dgdu": ones, "sensealg": hx.ForwardSensitivity()}, "ForwardSensitivity has no reverse pass"),
        ({"dgdu": {"x": 1.0}}, "(?s)dgdu.*structure.*expected"),
        ({"dgdu": np.ones((3, 1))}, r"(?s)dgdu.*\(3, 1\).*\(2, 1\)"),
        ({"dgdu": np.ones((2, 1)) * 1j}, "dgdu is complex"),
        ({"dgdu": lambda u, p, t, i: u[0]}, r"(?s)dgdu returned shape \(\).*\(1,\)"),
        ({"dgdp": lambda u, p, t, i: [p, p]}, "(?s)dgdp.*p has shape|dgdp.*shape"),
        ({"dgdp": np.ones(2)}, r"(?s)dgdp.*\(2,\).*\(\)"),
        ({"dgdt": np.ones(2), "save_everystep": True}, "save_everystep"),
        ({"dgdu": ones, "wrong": 1}, "unknown option 'wrong'"),
    ],
    ids=lambda x: None if isinstance(x, dict) else x[:20],
)
def test_a_cost_that_means_nothing_is_refused(options, match):
    with pytest.raises((TypeError, ValueError), match=match):
        hx.adjoint_sensitivities(ONE, **options)


def test_dgdp_of_another_structure_is_refused():
    prob = ONE.remake(f=lambda u, p, t: -p["k"] * u, p={"k": jnp.array(1.0)})
    with pytest.raises(TypeError, match="dgdp must have the structure of p"):
        hx.adjoint_sensitivities(prob, dgdp=lambda u, p, t, i: p["k"])


def test_data_in_numpy_that_a_row_index_cannot_reach_is_named():
    with pytest.raises(Exception) as error:
        hx.adjoint_sensitivities(ONE, dgdu=lambda u, p, t, i: u - NumpyData.values[i])
    assert any("jnp.asarray" in note for note in error.value.__notes__)
