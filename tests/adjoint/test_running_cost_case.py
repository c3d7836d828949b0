"""Case M1: the integral of a running cost with a parameter in it, by every method."""

import pytest
from methods import KINDS
from problems.case import relative_error
from problems.evaluate import evaluate
from problems.state_events import M1


@pytest.mark.parametrize("method", KINDS)
def test_m1_gradient_of_a_running_cost_is_within_1e6_of_gold(method):
    got, gold = evaluate(M1, method), M1.gold["cost"]
    assert got.loss == pytest.approx(gold.loss, rel=1e-8)
    assert relative_error(got.grad_u0, gold.grad_u0) < 1e-6
    assert relative_error(got.grad_p, gold.grad_p) < 1e-6
