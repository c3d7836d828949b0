"""Arrays that f, an affect, a condition and a cost capture: the gradient of the version that has them in p.

And buffers that change: seen by the next solve, never by an earlier gradient; or refused by name.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from methods import METHODS, TWO
from problems.case import relative_error

import hybridax as hx

# to rounding for the exact transpose; a reverse solve's steps answer to rounding, within a tenth of its tolerance
LIMIT = {"discrete": 1e-12, "interpolating": 1e-10}
EITHER = pytest.mark.parametrize("method", TWO)
Q = {"rate": jnp.array([0.3, 0.8]), "drop": jnp.array(0.6), "level": jnp.array(0.7), "price": jnp.array([1.0, -2.0])}


# where the equation does not matter: four steps of Euler's method, which compile quickly and have a closed form
EULER, STEPS = hx.Euler(adaptive=False), {"dt0": 0.25, "max_steps": 8}


def loss(method, captured, q):
    """One event where u[0] falls to the level, and a running cost; all of q captured, or all of it in p."""
    pick = (lambda p: q) if captured else (lambda p: p)
    callback = hx.ContinuousCallback(
        lambda u, p, t: u[0] - pick(p)["level"], None, lambda u, p, t: u + pick(p)["drop"] * u[::-1]
    )
    prob = hx.ODEProblem(
        lambda u, p, t: -pick(p)["rate"] * u * (1 + 0.1 * jnp.sin(t)),
        jnp.array([1.0, 0.4]),
        (0.0, 2.0),
        None if captured else q,
        running_cost=lambda u, p, t: jnp.sum(pick(p)["price"] * u**2),
    )
    options = {"rtol": 1e-9, "atol": 1e-9, "max_events": 4, "max_steps": 256}
    sol = hx.solve(prob, callback=callback, sensealg=METHODS[method], saveat=[0.3, 2.0], **options)
    return jnp.sum(jnp.where(sol.valid[:, None], sol.us, 0.0) ** 2) + sol.cost


def eager(method, captured):
    return lambda q: jax.grad(functools.partial(loss, method, captured))(q)


@functools.lru_cache(maxsize=None)
def compiled(method, captured):
    return jax.jit(eager(method, captured))


def different(q):
    return jax.tree.map(lambda x: 1.05 * x, q)


@EITHER
def test_captured_arrays_get_the_gradient_of_parameters_under_grad_and_jit(method):
    expected = compiled(method, False)(Q)
    assert all(np.all(x != 0) for x in jax.tree.leaves(expected))
    for name in Q:
        assert relative_error(compiled(method, True)(Q)[name], expected[name]) < LIMIT[method]
    other = different(Q)
    assert relative_error(compiled(method, True)(other), compiled(method, False)(other)) < LIMIT[method]


def test_captured_arrays_get_the_gradient_of_parameters_outside_jit():
    assert relative_error(eager("discrete", True)(Q), compiled("discrete", False)(Q)) < 1e-12


def test_captured_arrays_get_the_gradient_of_parameters_under_vmap():
    both = jax.tree.map(lambda x, y: jnp.stack([x, y]), Q, different(Q))
    together = jax.jit(jax.vmap(eager("discrete", True)))(both)
    for lane, q in enumerate((Q, different(Q))):
        assert relative_error(jax.tree.map(lambda x, k=lane: x[k], together), compiled("discrete", False)(q)) < 1e-9


def test_an_array_captured_by_a_solve_inside_a_right_hand_side_gets_its_gradient():
    """u' = -v(1) u with v' = -rate v, both from 1 by four steps of Euler's method."""

    def outer(rate, u):
        inner = hx.ODEProblem(lambda v, p, t: -rate * v, jnp.ones(1), (0.0, 1.0))
        return -hx.solve(inner, EULER, **STEPS).us[-1] * u

    def end(rate):
        return hx.solve(hx.ODEProblem(lambda u, p, t: outer(rate, u), jnp.ones(1), (0.0, 1.0)), EULER, **STEPS).us[-1, 0]

    exact = jax.value_and_grad(lambda rate: (1 - (1 - rate / 4) ** 4 / 4) ** 4)(0.5)
    np.testing.assert_allclose(jax.jit(jax.value_and_grad(end))(0.5), exact, rtol=1e-12)


# ------------------------------------------------------------------ buffers
class Holder:
    def __init__(self, buffer):
        self.buffer = buffer


def filled(make, write):
    """u' = the sum of a buffer that holds p^2, written through a second holder of it; u(1) = p^2."""
    holder = Holder(make())

    def f(u, p, t):
        second = Holder(holder.buffer)
        write(second, p)
        return jnp.sum(second.buffer[...])[None]

    return lambda p: hx.solve(hx.ODEProblem(f, jnp.zeros(1), (0.0, 1.0), p), EULER, **STEPS).us[-1, 0]


def whole(holder, p):
    holder.buffer[...] = p**2 * jnp.array([0.25, 0.75])


def entry(holder, p):
    holder.buffer[1] = p**2


def replaced(holder, p):
    holder.buffer = holder.buffer.at[:].set(p**2 * jnp.array([0.25, 0.75]))


@pytest.mark.parametrize("write", [whole, entry])
@pytest.mark.parametrize("make", [lambda: np.zeros(2), lambda: jax.new_ref(jnp.zeros(2))], ids=["numpy", "reference"])
def test_a_captured_buffer_that_is_written_to_is_refused_by_name(make, write):
    for transform in (lambda g: g, jax.jit):
        with pytest.raises((TypeError, ValueError), match="holder.buffer"):
            transform(jax.grad(filled(make, write)))(0.7)


def test_a_buffer_that_is_replaced_and_not_written_to_has_the_right_gradient():
    assert float(jax.grad(filled(lambda: jnp.zeros(2), replaced))(0.7)) == pytest.approx(1.4, rel=1e-12)


def test_a_reference_among_the_parameters_is_refused():
    with pytest.raises(TypeError, match="new_ref"):
        hx.solve(hx.ODEProblem(lambda u, p, t: u, jnp.zeros(1), (0.0, 1.0), {"x": jax.new_ref(jnp.zeros(1))}))


def aligned(n):
    """A NumPy array at an address that JAX could adopt without a copy."""
    raw = np.zeros(8 * n + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + 8 * n].view(np.float64)


@pytest.mark.parametrize("where", ["captured", "p", "u0"])
def test_a_numpy_buffer_that_changes_is_seen_by_the_next_solve_and_not_by_earlier_gradients(where):
    """Two solves in one loss over one buffer, which holds 1 and then 2: u(1) = u0 (1 + x c / 4)^4 with c or u0 the buffer."""
    buffer = aligned(4)

    def solve(x):
        if where == "u0":
            prob = hx.ODEProblem(lambda u, p, t: p * u, buffer, (0.0, 1.0), x)
        elif where == "p":
            prob = hx.ODEProblem(lambda u, p, t: p["x"] * p["c"] * u, jnp.ones(4), (0.0, 1.0), {"x": x, "c": buffer})
        else:
            prob = hx.ODEProblem(lambda u, p, t: x * buffer * u, jnp.ones(4), (0.0, 1.0))
        return jnp.sum(hx.solve(prob, EULER, **STEPS).us[-1])

    def loss(x):
        total = 0.0
        for value in (1.0, 2.0):
            buffer[:] = value
            total = total + solve(x)
            buffer[:] = np.nan
        return total

    end = (lambda x, c: 4 * c * (1 + x / 4) ** 4) if where == "u0" else (lambda x, c: 4 * (1 + x * c / 4) ** 4)
    exact = jax.value_and_grad(lambda x: end(x, 1.0) + end(x, 2.0))(0.3)
    np.testing.assert_allclose(jax.value_and_grad(loss)(0.3), exact, rtol=1e-12)


def test_a_key_that_f_captures_is_a_key_there():
    key = jax.random.key(3)
    noise = float(jax.random.normal(key, ()))

    def loss(x):
        prob = hx.ODEProblem(lambda u, p, t: x * jax.random.normal(key, (1,)), jnp.zeros(1), (0.0, 1.0))
        return hx.solve(prob, EULER, **STEPS).us[-1, 0]

    assert float(jax.grad(loss)(0.5)) == pytest.approx(noise, rel=1e-12)
