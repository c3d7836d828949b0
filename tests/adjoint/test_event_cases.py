"""Events on the state: E1 to E8, W1 and the bouncing ball, by every method, with their rows and their times.

E1 to E7 differ in their affect alone. By every method they run with the affect's numbers in an array, as two compiled
solves (limits saved or not) in place of seven; each affect also runs as it is written, by one of the methods in turn, for
its structure (a component that forgets, one that passes through).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from methods import KINDS, METHODS
from problems import state_events as cases
from problems.case import relative_error
from problems.evaluate import evaluate

import hybridax as hx

EVERY = pytest.mark.parametrize("method", METHODS)
IMPACT = np.sqrt(2 * 5 / 9.8)


def check(case, loss, method):
    got, gold = evaluate(case, method, loss), case.gold[loss]
    assert got.rows == case.rows
    assert got.loss == pytest.approx(gold.loss, rel=1e-8)
    assert relative_error(got.grad_u0, gold.grad_u0) < 1e-6
    assert relative_error(got.grad_p, gold.grad_p) < 1e-6


@pytest.mark.parametrize("loss", ["sum", "mse"])
@pytest.mark.parametrize("name", cases.E)
@pytest.mark.parametrize("method", METHODS)
def test_gradient_through_an_impact_is_within_1e6_of_gold(name, loss, method):
    check(cases.E_BY_NUMBERS[name], loss, method)


AS_WRITTEN = [
    ("E1", "backsolve"),
    ("E3", "gauss"),
    ("E4", "quadrature"),
    ("E5", "gauss"),
    ("E6", "discrete"),
    ("E7", "interpolating"),
]


@pytest.mark.parametrize("loss", ["sum", "mse"])
@pytest.mark.parametrize("name, method", AS_WRITTEN)
def test_an_affect_as_it_is_written_gives_gold_too(name, method, loss):
    check(cases.E[name], loss, method)


@pytest.mark.parametrize("method", KINDS)
def test_e8_gradient_of_where_and_when_the_ball_stops_and_none_of_the_end_of_the_span(method):
    def solved(u0, p, t1):
        return cases.E8.solve(u0, p, tspan=(0.0, t1), sensealg=METHODS[method])

    def losses(*x):
        sol = solved(*x)
        return jnp.stack([cases.E8.losses[name](sol, None) for name in ("velocity", "time")]), jnp.sum(sol.valid)

    values, pull, rows = jax.vjp(losses, cases.BALL.u0, cases.BALL.p, jnp.asarray(2.5), has_aux=True)
    assert int(rows) == cases.E8.rows
    for name, value, bar in zip(("velocity", "time"), values, jnp.eye(2)):
        gold, (grad_u0, grad_p, grad_t1) = cases.E8.gold[name], pull(bar)
        assert float(value) == pytest.approx(gold.loss, rel=1e-8)
        assert relative_error(grad_u0, gold.grad_u0) < 1e-6
        assert relative_error(grad_p, gold.grad_p) < 1e-6
        assert float(grad_t1) == 0.0


def test_e8_terminates_with_its_code_and_no_row_after_the_impact():
    sol = cases.E8.solve(saveat=0.5)
    assert hx.RetCode(int(sol.retcode)) == hx.RetCode.Terminated
    assert float(np.max(np.asarray(sol.ts)[np.asarray(sol.valid)])) == pytest.approx(IMPACT, rel=1e-12)


@pytest.mark.parametrize("method", ["quadrature"])
def test_e8_a_clock_in_the_state_gives_the_same_gradient_as_the_time_of_the_row(method):
    def rhs(u, p, t):
        return jnp.append(cases.BALL.f(u, p, t), 1.0)

    def loss(u0, p):
        prob = hx.ODEProblem(rhs, jnp.append(u0, 0.0), (0.0, 2.5), p)
        sol = hx.solve(prob, callback=cases.E8.callback(p), sensealg=METHODS[method], rtol=1e-10, atol=1e-10)
        return sol.us[jnp.sum(sol.valid) - 1, 2]

    got, gold = jax.jit(jax.grad(loss, (0, 1)))(cases.BALL.u0, cases.BALL.p), cases.E8.gold["time"]
    assert relative_error(got[0], gold.grad_u0) < 1e-6
    assert relative_error(got[1], gold.grad_p) < 1e-6


@pytest.mark.parametrize("method", KINDS)
def test_w1_gradient_through_floor_and_wall(method):
    got, gold = evaluate(cases.W1, method), cases.W1.gold["mse"]
    assert got.rows == 27
    assert relative_error(got.grad_u0, gold.grad_u0) < 1e-6
    assert relative_error(got.grad_p, gold.grad_p) < 1e-6


def test_w1_events_come_in_order_with_their_components():
    sol = cases.W1.solve()
    count = len(cases.W1_EVENTS)
    np.testing.assert_allclose(sol.events.times[:count], [e["time"] for e in cases.W1_EVENTS], rtol=1e-10)
    assert sol.events.component[:count].tolist() == [e["component"] for e in cases.W1_EVENTS]
    assert np.all(np.isinf(sol.events.times[count:])) and np.all(np.asarray(sol.events.component[count:]) == -1)


@EVERY
def test_the_bouncing_ball_matches_its_oracle(method):
    got, gold = evaluate(cases.BOUNCING_BALL, method), cases.BOUNCING_BALL.gold["sum"]
    assert got.rows == 12
    assert relative_error(got.grad_u0, gold.grad_u0) < 1e-7
    assert relative_error(got.grad_p, gold.grad_p) < 1e-7


def test_bounce_times_are_resolved_to_rounding():
    sol = cases.BOUNCING_BALL.solve()
    np.testing.assert_allclose(sol.events.times[:3], cases.BOUNCES, rtol=1e-12)


def test_sides_of_saved_limits_are_left_then_right():
    sol = cases.E["E4"].solve()
    ts, sides = np.asarray(sol.ts)[:8], np.asarray(sol.sides)[:8]
    assert sides.tolist() == [0, 0, 0, -1, 1, 0, 0, 0]
    np.testing.assert_allclose(ts[3:5], IMPACT, rtol=1e-12)
