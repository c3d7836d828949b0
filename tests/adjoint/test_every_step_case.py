"""Case H3: a callback after every accepted step, trained through, by every method."""

import jax
import pytest
from methods import METHODS
from problems.case import relative_error
from problems.state_events import H3
from test_training_cases import train


@pytest.mark.parametrize("method", METHODS)
def test_h3_training_reaches_the_stated_loss(method):
    assert train(H3, method) < H3.below


def test_h3_gradients_of_all_methods_agree_to_a_thousandth():
    case = H3.case

    def gradient(method):
        loss = lambda p: case.losses["before"](case.solve(p=p, sensealg=METHODS[method], rtol=1e-8, atol=1e-8), p)
        return jax.jit(jax.grad(loss))(case.problem.p)

    discrete = gradient("discrete")
    for method in METHODS:
        assert relative_error(gradient(method), discrete) < 1e-3


def test_h3_has_101_rows():
    assert H3.case.solve(rtol=1e-3, atol=1e-6).ts.shape == (101,)
