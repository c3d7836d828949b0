"""Programs cut into kernels compute what they computed before, and XLA takes every one of the calls."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridax.adjoint.programs import clear_cache
from hybridax.solvers import one_kernel

import hybridax as hx

W, U = jnp.linspace(-1.0, 1.0, 12).reshape(3, 4), jnp.array([0.3, -0.7, 1.1])


def steps(w, u, unused, empty):
    """A loop with products, a branch, buffers, constants, arguments that it does not read, and one without entries."""
    tolerance = jnp.full(3, 1e-3)

    def body(carry):
        i, u, rows, rest = carry
        slope = jnp.tanh(u @ w) @ w.T
        u = jnp.where(jnp.abs(slope) > tolerance, u - 0.1 * slope, u)
        u = jax.lax.cond(i % 3 == 0, lambda x: x / (1 + jnp.max(jnp.abs(x))), lambda x: x, u)
        return i + 1, u, jax.lax.dynamic_update_index_in_dim(rows, u, i, 0), rest

    i, u, rows, rest = jax.lax.while_loop(lambda c: c[0] < 20, body, (0, u, jnp.zeros((20, 3)), empty))
    return rows, u, rest, i


def with_library(w, u, unused, empty):
    """Between two loops, and in the body of one, an operation for which XLA needs a library."""
    rows, u, *_ = steps(w, u, unused, empty)
    size = jnp.linalg.norm(jnp.linalg.qr(w @ w.T + jnp.eye(3))[1])

    def body(i, x):
        x = steps(w, x, unused, empty)[1] + jnp.sort(x) * 0.1
        return x / size

    return jax.lax.fori_loop(0, 3, body, u), rows


def cut(function):
    closed = jax.make_jaxpr(function)(W, U, U, jnp.zeros((0, 3)))
    return lambda *args: one_kernel.evaluate(closed, args)


@pytest.mark.parametrize("function, calls", [(steps, 1), (with_library, 2)])
def test_same_results(function, calls):
    args = W, U, U, jnp.zeros((0, 3))
    program = jax.jit(cut(function)).lower(*args).compile()
    for got, expected in zip(program(*args), jax.jit(function)(*args), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-13)
    text = program.as_text()
    made = [line for line in text.splitlines() if " call(" in line and 'inlineable="false"' in line]
    assert len(made) >= (calls if jax.default_backend() == "cpu" else 0)


@pytest.mark.parametrize("name", ["bouncing", "dosing"])
@pytest.mark.parametrize("method", [hx.DiscreteAdjoint(), hx.InterpolatingAdjoint()], ids=lambda m: type(m).__name__)
def test_same_gradients(name, method, monkeypatch):
    if name == "bouncing":

        def rhs(u, p, t):
            return jnp.stack([u[1], -p[0] - 0.1 * u[1]])

        bounce = hx.ContinuousCallback(lambda u, p, t: u[0], lambda u, p, t: jnp.stack([u[0], -p[1] * u[1]]))
        u0, callback = jnp.array([1.0, 0.0]), bounce
    else:

        def rhs(u, p, t):
            return jnp.tanh(W.T @ (p[0] * jnp.append(u, t))) @ jnp.ones((4, 2)) - p[1] * u

        u0, callback = jnp.array([0.5, -0.2]), hx.PeriodicCallback(lambda u, p, t: u.at[0].add(p[1]), 0.3)

    def loss(p):
        prob = hx.ODEProblem(rhs, u0, (0.0, 1.5), p)
        sol = hx.solve(prob, callback=callback, saveat=jnp.linspace(0.1, 1.4, 9), rtol=1e-8, atol=1e-8, sensealg=method)
        return jnp.sum(jnp.where(jnp.isfinite(sol.us), sol.us, 0) ** 2)

    def gradient(enabled):
        monkeypatch.setattr(one_kernel, "ENABLED", enabled)
        clear_cache()
        jax.clear_caches()
        return jax.jit(jax.value_and_grad(loss))(jnp.array([9.0, 0.8]))

    for got, expected in zip(gradient(True), gradient(False), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-7 if isinstance(method, hx.InterpolatingAdjoint) else 1e-8)
    clear_cache()


def test_one_component_and_no_parameters(monkeypatch):
    """Arrays without entries and bounds of slices as constants once were arguments that nothing read, and ended the process."""
    monkeypatch.setattr(one_kernel, "ENABLED", True)
    clear_cache()
    prob = hx.ODEProblem(lambda u, p, t: -u, jnp.ones(1), (0.0, 1.0), None)
    end = lambda u: hx.solve(prob, u0=u, sensealg=hx.InterpolatingAdjoint(), rtol=1e-8, atol=1e-8).us[-1, 0]
    np.testing.assert_allclose(jax.jit(jax.grad(end))(prob.u0), [np.exp(-1.0)], rtol=1e-7)
    clear_cache()
