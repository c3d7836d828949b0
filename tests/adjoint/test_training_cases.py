"""Cases H1, H2 and H4: hybrid systems with a network learn, by every method.

One compiled loss and gradient for each case and method serves the training and what else is asked of the gradient, with the
tolerances as arguments. Training ends where it has reached the stated loss.
"""

import functools

import jax
import numpy as np
import optax
import pytest
from methods import KINDS, METHODS, TWO
from problems.case import flat
from problems.training import H1, H2, TRAINING

DEFAULTS = {"rtol": 1e-3, "atol": 1e-6}


@functools.lru_cache(maxsize=None)
def value_and_gradient(training, method):
    """``(p, u0, rtol, atol) -> (loss, gradient)``, compiled."""
    case = training.case
    (loss,) = case.losses.values()

    def value(p, u0, rtol, atol):
        return loss(case.solve(u0, p, sensealg=METHODS[method], rtol=rtol, atol=atol), p)

    return jax.jit(jax.value_and_grad(value))


def train(training, method, dtype=np.float64):
    """The loss that training came to: the first below the stated one, or that after the stated number of steps."""
    cast = lambda tree: jax.tree.map(lambda x: x.astype(dtype), tree)
    u0, params = cast(training.case.problem.u0), cast(training.case.problem.p)
    optimizer, evaluate = training.optimizer, value_and_gradient(training, method)

    @jax.jit
    def update(gradient, state, params):
        with jax.numpy_dtype_promotion("standard"):  # optax is written for it
            updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    for step in range(training.steps + 1):
        value, gradient = evaluate(params, u0, **DEFAULTS)
        if value < training.below or step == training.steps:
            break
        params, state = update(gradient, state, params)
    assert value.dtype == u0.dtype
    return float(value)


@pytest.mark.parametrize("name", TRAINING)
def test_loss_before_training_is_gold(name):
    case = TRAINING[name].case
    sol = case.solve()
    assert sol.ts.shape == (case.rows,) and bool(sol.valid.all())
    assert float(case.losses["before"](sol, case.problem.p)) == pytest.approx(case.gold["before"].loss, rel=1e-6)


def test_h1_rows_alternate_between_left_and_right_limits():
    sol = H1.case.solve()
    np.testing.assert_array_equal(sol.ts, [0.0, *np.repeat(np.arange(1.0, 101.0), 2)])
    assert sol.sides.tolist() == [0] + [-1, 1] * 100


@pytest.mark.parametrize("method", TWO)
def test_h1_only_the_last_bias_has_a_gradient_at_zero_weights(method):
    case = H1.case
    _, gradient = value_and_gradient(H1, method)(case.problem.p, case.problem.u0, **DEFAULTS)
    *others, last = gradient
    assert np.all(flat([others, last[0]]) == 0)
    assert np.any(np.asarray(last[1]) != 0)


# the jumps of H4 are of the kind that H2 has
RUNS = [(name, method) for name in TRAINING for method in (TWO if name == "H4" else KINDS)]


@pytest.mark.parametrize("name, method", RUNS)
def test_training_reaches_the_stated_loss(name, method):
    assert train(TRAINING[name], method) < TRAINING[name].below


@pytest.mark.parametrize("method", ["discrete"])
def test_h2_learns_in_float32_too(method):
    assert train(H2, method, np.float32) < H2.below
