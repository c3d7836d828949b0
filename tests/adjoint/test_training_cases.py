"""Cases H1, H2 and H4: hybrid systems with a network learn, by every method."""

import jax
import numpy as np
import optax
import pytest
from methods import METHODS, TWO
from problems.case import flat
from problems.training import H1, H2, TRAINING

DEFAULTS = {"rtol": 1e-3, "atol": 1e-6}


def train(training, method, dtype=None):
    """The loss after training, with the solver's default tolerances; the loop is one compiled program."""
    case, optimizer = training.case, training.optimizer
    cast = (lambda x: x) if dtype is None else (lambda tree: jax.tree.map(lambda x: x.astype(dtype), tree))
    u0, params = cast(case.problem.u0), cast(case.problem.p)
    (name,) = case.losses

    def loss(p):
        return case.losses[name](case.solve(u0, p, sensealg=METHODS[method], **DEFAULTS), p)

    @jax.jit
    def run(params):
        def step(carry, _):
            params, state = carry
            value, gradient = jax.value_and_grad(loss)(params)
            with jax.numpy_dtype_promotion("standard"):  # optax is written for it
                updates, state = optimizer.update(gradient, state)
            return (optax.apply_updates(params, updates), state), value

        (params, _), history = jax.lax.scan(step, (params, optimizer.init(params)), None, training.steps)
        return loss(params), history

    final, _ = run(params)
    assert final.dtype == u0.dtype
    return float(final)


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

    def loss(p):
        return case.losses["before"](case.solve(p=p, sensealg=METHODS[method], **DEFAULTS), p)

    gradient = jax.jit(jax.grad(loss))(case.problem.p)
    *others, last = gradient
    assert np.all(flat([others, last[0]]) == 0)
    assert np.any(np.asarray(last[1]) != 0)


RUNS = [(name, method) for name in TRAINING for method in (TWO if name == "H4" else METHODS)]


@pytest.mark.parametrize("name, method", RUNS)
def test_training_reaches_the_stated_loss(name, method):
    assert train(TRAINING[name], method) < TRAINING[name].below


@pytest.mark.parametrize("method", TWO)
def test_h2_learns_in_float32_too(method):
    assert train(H2, method, np.float32) < H2.below
