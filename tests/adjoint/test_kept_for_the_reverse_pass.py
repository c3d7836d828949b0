"""What a forward pass outside jit keeps for the reverse pass: of many lanes, no record or slopes that nobody reads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hybridax as hx

LANES = 64


def lorenz(u, p, t):
    return jnp.stack([10.0 * (u[1] - u[0]), p * u[0] - u[1] - u[0] * u[2], u[0] * u[1] - 8 / 3 * u[2]])


def network(u, p, t):
    return jnp.tanh(p * jnp.ones((4, 40)) @ jnp.tanh(jnp.ones((40, 4)) @ u)) - u


def kept(rhs, u0):
    """Bytes."""

    def end(u0, p):
        return hx.solve(hx.ODEProblem(rhs, u0, (0.0, 1.0), p)).us[-1]

    solve = end if u0.ndim == 1 else jax.vmap(end, (0, None))
    _, back = jax.vjp(solve, u0, 0.1)
    return sum(x.nbytes for x in jax.tree.leaves(back) if isinstance(x, jax.Array))


@pytest.mark.parametrize("rhs, n, share", [(lorenz, 3, 0.01), (network, 4, 0.3)])
def test_many_lanes(rhs, n, share):
    """``share``: of what a single lane keeps, at most, on each of many."""
    one = kept(rhs, jnp.ones(n))
    many = kept(rhs, np.ones((LANES, n)))
    assert one > 1e5  # a record, which is what this is about
    assert many < one + share * LANES * one
