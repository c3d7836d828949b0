"""Maxima and minima in a right-hand side: the derivative of the entry that is the largest, by every method."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridax.adjoint.extrema import evaluate, has_extrema
from problems.case import relative_error

import hybridax as hx

METHODS = [
    hx.DiscreteAdjoint(),
    hx.InterpolatingAdjoint(),
    hx.QuadratureAdjoint(),
    hx.GaussAdjoint(),
    hx.BacksolveAdjoint(),
    hx.DirectAdjoint(),
]
P, U0 = np.array([0.7, 1.764, 0.4]), np.array([1.0, 0.5])


def terms(u, p):
    # products that XLA may or may not fuse with the sum
    return u * p[0] + p[1:3] * u[::-1]


def by_norm(u, p, t):
    return -u * jnp.linalg.norm(terms(u, p), jnp.inf)


def by_branch(u, p, t):
    """The same: the first term is the largest all the way."""
    return -u * terms(u, p)[0]


def loss(f, method, p, u0=U0):
    prob = hx.ODEProblem(f, jnp.asarray(u0), (0.0, 2.0), p, rtol=1e-10, atol=1e-10)
    return jnp.sum(hx.solve(prob, sensealg=method, max_steps=256).us[-1] ** 2)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_gradients_are_those_of_the_branch(method):
    expected = jax.grad(lambda p: loss(by_branch, hx.DiscreteAdjoint(), p))(jnp.asarray(P))
    np.testing.assert_allclose(expected, [-0.06925288077, -0.03462644027, 0.0], rtol=1e-8)  # differences of scipy's DOP853
    assert relative_error(jax.jit(jax.grad(lambda p: loss(by_norm, method, p)))(jnp.asarray(P)), expected) < 1e-7
    lanes = jax.jit(jax.vmap(jax.grad(lambda p: loss(by_norm, method, p))))(jnp.tile(P, (3, 1)))
    assert relative_error(lanes, np.tile(expected, (3, 1))) < 1e-7


def test_forward_and_second_order():
    at, method = jnp.asarray(P), hx.ForwardSensitivity()
    tangents = jax.jit(jax.jacfwd(lambda p: loss(by_norm, method, p)))(at)
    assert relative_error(tangents, jax.jacfwd(lambda p: loss(by_branch, method, p))(at)) < 1e-7
    hessian = lambda f: jax.jit(jax.jacfwd(jax.grad(lambda p: loss(f, hx.DiscreteAdjoint(), p))))(at)
    assert relative_error(hessian(by_norm), hessian(by_branch)) < 1e-7


def nested(x, y):
    def body(c, row):
        return c + jnp.min(row * x[0] + y), jax.lax.cond(c > 0, lambda r: jnp.max(r), lambda r: jnp.sum(r), row)

    total, rows = jax.lax.scan(body, x[1], jnp.outer(x, y))
    total = jax.lax.fori_loop(0, 3, lambda i, c: c + 0.1 * jnp.max(jnp.abs(c * x), 0), total)
    return total, rows, jnp.max(jnp.outer(x, y).reshape(3, 2, 2), (0, 2)), jax.checkpoint(lambda z: jnp.max(z * y[0]))(x)


def test_nested_ones_are_found_and_have_the_same_derivatives():
    x, y = jnp.array([0.3, -1.2, 0.8]), jnp.array([0.5, 1.5, -0.7, 0.2])
    closed = jax.make_jaxpr(nested)(x, y)
    again = lambda x, y: evaluate(closed.jaxpr, closed.consts, x, y)
    assert has_extrema(closed.jaxpr) and not has_extrema(jax.make_jaxpr(lambda x: jnp.sum(x))(x).jaxpr)
    for differentiate in (lambda f: f, jax.jacfwd):
        for a, b in zip(differentiate(again)(x, y), differentiate(nested)(x, y), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-13)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_first_of_equal_ones(sign):
    closed = jax.make_jaxpr(lambda x: (jnp.max(x), jnp.min(x))[sign < 0])(jnp.ones(3))
    np.testing.assert_array_equal(jax.grad(lambda x: evaluate(closed.jaxpr, [], x)[0])(jnp.ones(3)), [1.0, 0.0, 0.0])
