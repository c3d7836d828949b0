"""The oracle gradients, by every method: relative error below 1e-7 at rtol = atol = 1e-10."""

import pytest
from methods import ALL, METHODS, TWO
from problems.case import relative_error
from problems.evaluate import evaluate
from problems.oracles import ORACLES

# the doses of `dosing` once more, told apart by a counter in the state: a way of writing it, by two methods
BY = [(oracle, method) for oracle in ORACLES for method in (TWO if oracle == "dosing_by_counter" else ALL)]


@pytest.mark.parametrize("oracle, method", BY)
def test_gradient_matches_oracle(oracle, method):
    case = ORACLES[oracle]
    got, gold = evaluate(case, method), case.gold["sum"]
    assert got.rows == case.rows
    assert got.loss == pytest.approx(gold.loss, rel=1e-8)
    assert relative_error(got.grad_p, gold.grad_p) < 1e-7
    if gold.grad_u0 is not None:
        assert relative_error(got.grad_u0, gold.grad_u0) < 1e-7


@pytest.mark.parametrize("method", METHODS)
def test_gradient_of_every_dose_time_matches_oracle(method):
    case = ORACLES["dosing"]
    times = slice(5, 8)
    assert relative_error(evaluate(case, method).grad_p[times], case.gold["sum"].grad_p[times]) < 1e-7


def test_every_row_of_hybrid_node_is_where_the_oracle_has_it():
    sol = ORACLES["hybrid_node"].solve()
    assert sol.sides.tolist() == [-1, 1] + [-1, 1] * 9 + [0]
    assert bool(sol.valid.all())
