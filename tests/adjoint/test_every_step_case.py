"""Case H3: a callback after every accepted step, trained through, by every method."""

import pytest
from methods import KINDS
from problems.case import relative_error
from problems.state_events import H3
from test_training_cases import train, value_and_gradient


@pytest.mark.parametrize("method", KINDS)
def test_h3_training_reaches_the_stated_loss(method):
    assert train(H3, method) < H3.below


def test_h3_gradients_of_all_methods_agree_to_a_thousandth():
    problem, tight = H3.case.problem, {"rtol": 1e-8, "atol": 1e-8}
    gradients = {method: value_and_gradient(H3, method)(problem.p, problem.u0, **tight)[1] for method in KINDS}
    for method in KINDS:
        assert relative_error(gradients[method], gradients["discrete"]) < 1e-3


def test_h3_has_101_rows():
    assert H3.case.solve(rtol=1e-3, atol=1e-6).ts.shape == (101,)
