"""Forward over reverse: jax.jvp of jax.grad against central differences of the gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from methods import METHODS

import hybridax as hx

OPTIONS = {"rtol": 1e-9, "atol": 1e-9}
DIRECTION = jnp.array([1.0, -2.0])


def agree(loss, p):
    gradient = jax.jit(jax.grad(loss))
    product = jax.jvp(gradient, (p,), (DIRECTION,))[1]
    h = 1e-5
    difference = (gradient(p + h * DIRECTION) - gradient(p - h * DIRECTION)) / (2 * h)
    np.testing.assert_allclose(product, difference, rtol=1e-7)


@pytest.mark.parametrize("method", ["discrete", "quadrature"])
def test_hessian_products_match_differences_through_a_known_jump(method):
    def f(u, p, t):
        return jnp.stack([p[0] * u[0] - p[1] * u[0] * u[1], -p[1] * u[1] + u[0] * u[1]])

    callback = hx.PresetTimeCallback([0.5], lambda u, p, t: u * p[0])

    def loss(p):
        prob = hx.ODEProblem(f, jnp.array([1.0, 1.2]), (0.0, 1.0), p, callback=callback)
        return jnp.sum(hx.solve(prob, sensealg=METHODS[method], **OPTIONS).us ** 2)

    agree(loss, jnp.array([1.3, 0.7]))


def test_hessian_products_match_differences_through_bounces():
    """The steps after a bounce move with its time: a Hessian that forgot them would be off by a third."""
    callback = hx.ContinuousCallback(
        lambda u, p, t: u[0], lambda u, p, t: jnp.stack([u[0], -p[1] * u[1]]), save_positions=(False, False)
    )

    def loss(p):
        prob = hx.ODEProblem(lambda u, p, t: jnp.stack([u[1], -p[0]]), jnp.array([2.0, 1.0]), (0.0, 3.0), p)
        return jnp.sum(hx.solve(prob, callback=callback, saveat=0.25, **OPTIONS).us ** 2)

    agree(loss, jnp.array([9.81, 0.8]))
