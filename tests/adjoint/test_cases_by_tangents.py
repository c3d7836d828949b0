"""Acceptance cases by the methods that differentiate the loop, one of the two for each kind of event."""

import dataclasses

import pytest
from problems import known_events, smooth
from problems import state_events as state
from problems.case import relative_error
from problems.evaluate import evaluate

CASES = {
    "E4": (state.E["E4"], "sum", "forward"),
    "E8": (state.E8, "time", "direct"),
    "W1": (state.W1, "mse", "forward"),
    "C9 at a learned time": (known_events.C9_TIME, "end", "direct"),
    "P7": (known_events.P7, "S", "forward"),
    "M1": (state.M1, "cost", "direct"),
    "M2": (smooth.M2["by array"], "sum", "forward"),
}


@pytest.mark.parametrize("name", CASES)
def test_gradient_is_within_1e6_of_gold(name):
    case, loss, method = CASES[name]
    # DirectAdjoint keeps and walks through all of max_steps
    case = dataclasses.replace(case, options={**case.options, "max_steps": 1024, "max_events": 8})
    got, gold = evaluate(case, method, loss), case.gold[loss]
    assert got.rows == case.rows
    assert got.loss == pytest.approx(gold.loss, rel=1e-7)
    assert relative_error(got.grad_p, gold.grad_p) < 1e-6
    if gold.grad_u0 is not None:
        assert relative_error(got.grad_u0, gold.grad_u0) < 1e-6
