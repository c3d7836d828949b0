"""The work of a reverse pass does not grow with the number of save times."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from counting import Counter
from methods import KINDS, METHODS

import hybridax as hx


@functools.lru_cache(maxsize=None)
def counted_gradient(method, saves):
    """Counts (evaluations, pullbacks) of one gradient, and the forward evaluations that `stats` reports."""
    counter = Counter(2)

    def rhs(u, p, t):
        return counter.tick(jnp.stack([p[0] * u[1], -p[1] * u[0] + jnp.sin(t)]))

    prob = hx.ODEProblem(rhs, jnp.array([1.0, 0.0]), (0.0, 6.0), jnp.array([1.0, 2.0]), rtol=1e-6, atol=1e-6)

    @jax.jit
    def gradient(p):
        def loss(p):
            sol = hx.solve(prob, p=p, sensealg=METHODS[method], saveat=np.linspace(0.0, 6.0, saves))
            return jnp.mean(sol.us**2), sol.stats.evaluations

        return jax.grad(loss, has_aux=True)(p)

    jax.block_until_ready(gradient(prob.p))
    counter.reset()
    value, evaluations = jax.block_until_ready(gradient(prob.p))
    jax.effects_barrier()
    assert np.all(np.isfinite(value))
    return counter.forward, counter.reverse, int(evaluations)


def test_the_discrete_adjoint_does_the_same_work_for_two_saves_and_for_five_hundred():
    assert counted_gradient("discrete", 2) == counted_gradient("discrete", 500)


@pytest.mark.parametrize("method", [name for name in KINDS if name != "discrete"])
def test_a_save_time_costs_a_reverse_solve_one_step_and_no_new_search_for_its_length(method):
    """Each save kicks the costate, so that a step must end there: at most 7 evaluations, the pullbacks of two unit vectors at
    6 points, and a rule of 15 nodes for the parameters."""
    few, many = counted_gradient(method, 5), counted_gradient(method, 500)
    assert many[2] == few[2]
    assert many[0] - few[0] <= 7 * 495
    assert many[1] - few[1] <= (2 * 6 + 15) * 495


def test_the_discrete_adjoint_visits_each_stage_of_the_chunks_a_few_times_at_most():
    """Two unit vectors for the Jacobian of each of seven stages, and one product for the parameters."""
    forward, reverse, evaluations = counted_gradient("discrete", 2)
    steps = (evaluations - 2) // 6
    rows = 32 * (steps // 32 + 1)
    assert forward <= evaluations + 3 * 7 * rows
    assert reverse <= 3 * 7 * rows
