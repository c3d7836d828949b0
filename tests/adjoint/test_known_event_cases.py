"""Cases with events at known times, S13, C2 to C9 and P7: every method, with the number of rows.

C2, C3, C5 and C6 differ in their affect alone. By every method they run with the affect's numbers in an array, as one
compiled solve for each method; each affect also runs as it is written, by methods in turn, for its structure.
"""

import jax
import numpy as np
import pytest
from methods import KINDS, METHODS
from problems import known_events as cases
from problems.case import relative_error
from problems.evaluate import evaluate

import hybridax as hx

C, BY_NUMBERS = ({case.name: case for case in group} for group in (cases.C, cases.C_BY_NUMBERS))


def check(case, loss, method):
    got, gold = evaluate(case, method, loss), case.gold[loss]
    assert got.rows == case.rows
    assert got.loss == pytest.approx(gold.loss, rel=1e-7)
    assert relative_error(got.grad_u0, gold.grad_u0) < 1e-6
    assert relative_error(got.grad_p, gold.grad_p) < 1e-6


# C4 differs from C3 in nothing but the number of jumps: three methods
SOME = {"C4": ["discrete", "quadrature", "backsolve"], "C7": KINDS}
BY = [(name, method) for name in C for method in SOME.get(name, METHODS)]


@pytest.mark.parametrize("loss", ["sum", "mse"])
@pytest.mark.parametrize("name, method", BY)
def test_gradient_through_jumps_is_within_1e6_of_gold(name, loss, method):
    check(BY_NUMBERS.get(name, C[name]), loss, method)


AS_WRITTEN = [*zip(BY_NUMBERS, ["gauss", "quadrature", "interpolating", "discrete"], strict=True)]


@pytest.mark.parametrize("loss", ["sum", "mse"])
@pytest.mark.parametrize("name, method", AS_WRITTEN)
def test_an_affect_as_it_is_written_gives_gold_too(name, method, loss):
    check(C[name], loss, method)


def _sides_at(sol, time):
    return sol.sides[np.asarray(sol.ts) == time].tolist()


def test_c2_the_two_rows_at_an_event_that_does_nothing_are_equal():
    sol = cases.C2.solve()
    left, right = sol.us[np.asarray(sol.ts) == 5.0]
    np.testing.assert_array_equal(left, right)


def test_c2_without_saved_limits_has_21_rows():
    callback = hx.PresetTimeCallback([5.0], lambda u, p, t: u, save_positions=(False, False))
    sol = cases.C2.solve(callback=callback)
    assert sol.ts.shape == (21,)
    assert float(np.sum(sol.us)) == pytest.approx(91.7277577289, rel=1e-10)
    assert _sides_at(sol, 5.0) == [-1]


def test_c3_the_left_limit_comes_before_the_right_one():
    sol = cases.C3.solve()
    assert _sides_at(sol, 5.0) == [-1, 1]
    left, right = sol.us[np.asarray(sol.ts) == 5.0]
    np.testing.assert_allclose(right - left, [2.0, 0.0], atol=1e-13)


def test_c4_an_event_on_the_grid_adds_one_row_and_off_the_grid_two():
    sol = cases.C4.solve()
    assert [_sides_at(sol, t) for t in (2.03, 4.0, 8.0)] == [[-1, 1]] * 3
    assert np.sum(np.asarray(sol.sides) == 0) == 21 - 2


# every method with both limits saved above, and with neither at a learned time below
C9 = [*zip(cases.C9, ["backsolve", "interpolating", "discrete", "quadrature"], strict=True), (cases.C9[-1], "gauss")]


@pytest.mark.parametrize("case, method", C9, ids=str)
def test_c9_gradient_does_not_depend_on_save_positions(case, method):
    got, gold = evaluate(case, method), case.gold["end"]
    assert got.rows == case.rows
    assert relative_error(got.grad_p, gold.grad_p) < 1e-6
    assert relative_error(got.grad_u0, gold.grad_u0) < 1e-5


@pytest.mark.parametrize("method", KINDS)
def test_c9_gradient_of_the_dose_time_is_the_closed_form(method):
    got = evaluate(cases.C9_TIME, method)
    gold = cases.C9_TIME.gold["end"]
    assert got.rows == 2
    assert relative_error(got.grad_p[:2], gold.grad_p[:2]) < 1e-6
    assert got.grad_p[2] == pytest.approx(50 * np.exp(-2.0), rel=1e-6)


@pytest.mark.parametrize("method", KINDS)
def test_p7_gradient_of_a_learned_switch_time_is_the_closed_form(method):
    got = evaluate(cases.P7, method)
    assert got.rows == 2
    assert got.loss == pytest.approx(cases.P7.gold["S"].loss, rel=1e-6)
    assert got.grad_p[0] == pytest.approx(-1 + np.exp(-0.5), rel=1e-5)


@pytest.mark.parametrize("method", KINDS)
def test_s13_each_quarter_has_its_own_gradient(method):
    case = cases.S13["off_equilibrium"]
    got, gold = evaluate(case, method), case.gold["sum"]
    assert got.rows == 41
    assert relative_error(got.grad_u0[:2], gold.grad_u0) < 1e-6
    assert relative_error(got.grad_p, gold.grad_p) < 1e-6
    assert len(set(np.round(got.grad_p, 3))) == 4


@pytest.mark.parametrize("method", [name for name in KINDS if name != "discrete"])
def test_s13_at_rest_continuous_methods_control_their_own_error(method):
    case = cases.S13["sum"]
    got, gold = evaluate(case, method), case.gold["sum"]
    assert relative_error(got.grad_u0[:2], gold.grad_u0) < 1e-6
    assert relative_error(got.grad_p, gold.grad_p) < 1e-6


def test_s13_at_rest_the_discrete_method_is_as_good_as_the_long_steps():
    case = cases.S13["sum"]
    got, gold = evaluate(case, "discrete"), case.gold["sum"]
    assert relative_error(got.grad_u0[:2], gold.grad_u0) < 1e-3
    assert relative_error(got.grad_p, gold.grad_p) < 1e-3


def test_a_callback_in_the_problem_and_in_the_call_give_the_same_gradient():
    case = cases.C5
    inside = case.problem.remake(callback=case.callback(None), saveat=0.5, rtol=1e-10, atol=1e-10)
    loss = case.losses["mse"]
    by_problem = jax.grad(lambda p: loss(hx.solve(inside, p=p), p))(case.problem.p)
    by_call = jax.grad(lambda p: loss(case.solve(p=p), p))(case.problem.p)
    np.testing.assert_array_equal(by_problem, by_call)
