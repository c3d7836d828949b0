"""Functions of small arrays, computed number by number, are the functions that they were."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridax.solvers.components import Numbers, by_components, is_light, joined, program_of, split

U, P = jnp.array([0.3, -0.7, 1.1]), jnp.linspace(0.5, 1.5, 6)
TURN = np.array([[0.0, -1.0, 0.5], [1.0, 0.2, 0.0], [0.3, 0.0, -0.4]])

FUNCTIONS = {
    "read and stack": lambda u, p: jnp.stack([p[0] * u[1], u[0] * u[2], -u[2]]),
    "products": lambda u, p: TURN @ u + p.reshape(3, 2) @ jnp.ones(2) * (u @ u),
    "batched product": lambda u, p: jnp.einsum("ij,ik->i", jnp.outer(u, p[:2]), p.reshape(3, 2)),
    "sums": lambda u, p: u * jnp.sum(p) - jnp.max(u) + jnp.prod(p.reshape(2, 3), 0) + jnp.min(p),
    "moves": lambda u, p: jnp.roll(u, 1) + jnp.flip(u) + jnp.concatenate([p[4:], p[:1]]) + p.reshape(2, 3).T[:, 1],
    "strides and padding": lambda u, p: (
        p[::2] + jnp.pad(u[:1], (1, 1)) + jax.lax.pad(p[:5], 0.0, [(-1, -1, 0)]) * jnp.repeat(u[:1], 3)
    ),
    "branches": lambda u, p: jnp.where(u > p[:3], u**2, jnp.tanh(p[3:])) + jax.nn.relu(u),
    "custom derivative": lambda u, p: jax.nn.softplus(u) + jnp.logaddexp(u, p[:3]),
    "gather": lambda u, p: u * p[jnp.argsort(jnp.abs(p))[:3]],
    "loop": lambda u, p: jax.lax.fori_loop(0, 3, lambda i, x: jnp.sin(x) + p[i], u),
    "large between": lambda u, p: jnp.tanh(jnp.outer(jnp.ones(50), u)).T @ jnp.ones(50) + p[:3],
}


def numbered(function):
    closed = jax.make_jaxpr(function)(U, P)

    def call(u, p):
        (out,) = by_components(closed, [split(u), p])
        return joined(out, u.dtype)

    return call


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_derivatives_over_lanes(name):
    function = FUNCTIONS[name]
    us, ps = jnp.stack([U, 2 * U, U - 0.2]), jnp.stack([P, P[::-1], 0.3 * P])

    def value_and_products(f):
        lane = lambda u, p: (f(u, p), *(jax.vjp(f, u, p)[1](jnp.array([1.0, -2.0, 0.5]))))
        return jax.jit(jax.vmap(lane))(us, ps)

    for got, expected in zip(value_and_products(numbered(function)), value_and_products(function), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-13, atol=1e-13)


def test_small_arrays_leave_no_trace():
    """A light right-hand side over lanes is arithmetic on arrays ``(B,)`` alone: nothing is stacked, sliced or gathered."""
    closed = jax.make_jaxpr(FUNCTIONS["read and stack"])(U, P)

    def parts(us, ps):
        (out,) = by_components(closed, [Numbers(us, np.arange(3)), Numbers(ps, np.arange(6))])
        return split(out).items

    lanes = jnp.ones(4)
    jaxpr = jax.make_jaxpr(jax.vmap(parts))((lanes,) * 3, (lanes,) * 6)
    assert {e.primitive.name for e in jaxpr.eqns} == {"mul", "neg"}


def test_what_is_light():
    t = jax.ShapeDtypeStruct((), U.dtype)

    def light(f, u=U, p=P):
        return is_light(program_of(lambda u, theta, t: f(u, *theta), u, (p,), t))

    assert light(FUNCTIONS["read and stack"]) and light(FUNCTIONS["products"]) and light(FUNCTIONS["custom derivative"])
    assert not light(FUNCTIONS["large between"]) and not light(FUNCTIONS["loop"])
    assert not light(lambda u, p: u * p[0], u=jnp.ones(9)) and not light(lambda u, p: u * p[0], p=jnp.ones(100))


def test_equal_numbers_are_computed_once():
    closed = jax.make_jaxpr(lambda x: jnp.sin(jnp.broadcast_to(x, (2, 3))))(1.0)
    traced = jax.make_jaxpr(lambda x: by_components(closed, [x])[0].items)(1.0)
    assert [e.primitive.name for e in traced.eqns] == ["sin"]
