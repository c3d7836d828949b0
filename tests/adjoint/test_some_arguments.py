"""What is held fixed gets no cotangent, and what is asked for gets the same whatever else is."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from counting import Counter
from methods import ALL, METHODS, TWO

import hybridax as hx

U0, P, Q, T1 = jnp.array([0.7, -0.4]), jnp.array([0.8, 0.5]), jnp.array([[0.3, 1.0], [-0.9, 0.2]]), 1.0


def rhs(u, p, t):
    return jnp.tanh(p["w"] @ u) - p["a"] * u * jnp.cos(t)


def from_the_state(u, p, t):
    """Parameters after the event that depend on the state before it."""
    return u * 0.9, {"a": p["a"] + jnp.sin(u), "w": p["w"] * u[0]}


@functools.lru_cache(maxsize=None)
def loss_of(method):
    callback = hx.PresetTimeCallback([0.3, 0.6], from_the_state, affects_params=True)

    def loss(u0, a, w, t1):
        prob = hx.ODEProblem(rhs, u0, (0.0, t1), {"a": a, "w": w}, callback=callback)
        sol = hx.solve(prob, rtol=1e-9, atol=1e-9, max_steps=512, sensealg=ALL[method])
        return jnp.sum(sol.us[-1] ** 2)

    return loss


@functools.lru_cache(maxsize=None)
def whole_gradient():
    """All four by central differences."""
    loss, args = jax.jit(loss_of("discrete")), (U0, P, Q, jnp.asarray(T1))

    def derivative(k, i, e=1e-5):
        moved = lambda s: (*args[:k], args[k] + s * e * i, *args[k + 1 :])
        return (loss(*moved(1)) - loss(*moved(-1))) / (2 * e)

    units = [np.eye(max(x.size, 1)).reshape(-1, *x.shape) for x in args]
    return [np.array([derivative(k, i) for i in u]).reshape(x.shape) for k, (u, x) in enumerate(zip(units, args))]


# the state alone through every method; the choice itself is made in one place for all
CASES = [(method, (0,)) for method in ALL] + [(method, which) for method in TWO for which in ((1,), (2, 3), (0, 1, 2, 3))]


@pytest.mark.parametrize("method, which", CASES, ids=str)
def test_each_alone_is_the_same_as_with_others(method, which):
    got = jax.jit(jax.grad(loss_of(method), which))(U0, P, Q, jnp.asarray(T1))
    for k, g in zip(which, got, strict=True):
        np.testing.assert_allclose(g, whole_gradient()[k], rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("method", METHODS)
def test_parameters_held_fixed_cost_no_product(method):
    """Also where no compiler sees that nobody reads their cotangent: outside jit the reverse pass is a program of its own."""
    counter = Counter(2)
    prob = hx.ODEProblem(lambda u, p, t: counter.tick(jnp.tanh(Q @ u) - p * u), U0, (0.0, 1.0), P)

    def loss(u0, p):
        return jnp.sum(hx.solve(prob, u0=u0, p=p, rtol=1e-6, atol=1e-6, max_steps=64, sensealg=METHODS[method]).us[-1] ** 2)

    def pullbacks(which):
        counter.reset()
        jax.block_until_ready(jax.grad(loss, which)(U0, P))
        jax.effects_barrier()
        return counter.reverse

    assert pullbacks((0,)) < pullbacks((0, 1))
