"""Any pytree for u0 and p, any floating dtype: the gradient has the structure and dtype of what it belongs to."""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from methods import KINDS, METHODS, TWO
from problems.case import relative_error

import hybridax as hx

EVERY = pytest.mark.parametrize("method", KINDS)
EITHER = pytest.mark.parametrize("method", TWO)
SAVES, TIMES = np.array([0.5, 1.0]), [0.5]
OPTIONS = {"rtol": 1e-9, "atol": 1e-9, "saveat": SAVES}


class Pair(NamedTuple):
    first: Any
    second: Any


class Node(eqx.Module):
    first: Any
    second: Any
    label: str = eqx.field(static=True, default="node")


BUILD = {
    "tuple": lambda a, b: (a, b),
    "Module": Node,
    "nested": lambda a, b: {"outer": [(a,), Pair(b, None)]},  # a dict, a list, a tuple, a NamedTuple and a None
}


def f(x, y, a, b, t):
    return -a * x + jnp.sum(y) * jnp.ones_like(x), jnp.outer(x, b) - 0.3 * y + jnp.sin(t)


def loss_in(build, method):
    """A loss over u0 = build(x (2,), y (2, 3)), p = build(a (), b (3,)), with a jump in both."""
    shape = jax.tree.structure(build(0, 0))

    def rhs(u, p, t):
        return shape.unflatten(f(*jax.tree.leaves(u), *jax.tree.leaves(p), t))

    def jump(u, p, t):
        (x, y), (a, b) = jax.tree.leaves(u), jax.tree.leaves(p)
        return shape.unflatten([x * a, y + b[None, :]])

    def loss(u0, p):
        callback = hx.PresetTimeCallback(TIMES, jump)
        sol = hx.solve(hx.ODEProblem(rhs, u0, (0.0, 1.0), p), callback=callback, sensealg=METHODS[method], **OPTIONS)
        assert jax.tree.structure(sol.us) == jax.tree.structure(u0)
        assert all(row.shape[1:] == x.shape for row, x in zip(jax.tree.leaves(sol.us), jax.tree.leaves(u0), strict=True))
        return sum(jnp.sum(x**2) for x in jax.tree.leaves(sol.us))

    return loss


VALUES = (
    (jnp.array([1.0, -0.5]), jnp.array([[0.1, 0.2, 0.3], [-0.4, 0.5, 0.6]])),
    (jnp.array(0.7), jnp.array([0.2, -0.3, 0.5])),
)


@functools.lru_cache(maxsize=None)
def gradient_in(name, method):
    build = BUILD[name]
    return jax.jit(jax.grad(loss_in(build, method), (0, 1)))(build(*VALUES[0]), build(*VALUES[1]))


@pytest.mark.parametrize("name, method", [*((name, "discrete") for name in BUILD), ("Module", "interpolating")])
def test_every_structure_gives_the_same_gradient(name, method):
    got = gradient_in(name, method)
    assert jax.tree.structure(got) == jax.tree.structure((BUILD[name](*VALUES[0]), BUILD[name](*VALUES[1])))
    assert relative_error(got, gradient_in("tuple", "discrete")) < (1e-12 if method == "discrete" else 1e-6)


def test_f_gets_parameters_exactly_as_they_were_given():
    seen = []

    def rhs(u, p, t):
        seen.append(jax.tree.structure(p))
        assert p["count"] == 3 and p["label"] == "x" and p["flag"] is True and p["nothing"] is None
        return -p["rate"] * u

    p = {"rate": jnp.array(0.5), "count": 3, "label": "x", "flag": True, "nothing": None}
    sol = hx.solve(hx.ODEProblem(rhs, jnp.ones(2), (0.0, 1.0), p))
    assert set(seen) == {jax.tree.structure(p)}
    np.testing.assert_allclose(sol.us[-1], np.exp(-0.5), rtol=1e-3)


@EITHER
def test_integer_and_boolean_leaves_are_carried_and_floats_beside_them_get_their_gradient(method):
    def rhs(u, p, t):
        return -p["rate"] * u * jnp.asarray(p["count"], u.dtype) * jnp.where(p["on"], 1.0, 0.0)

    p = {"count": jnp.array([2, 3]), "on": jnp.array(True), "rate": jnp.array(0.4)}
    prob = hx.ODEProblem(rhs, jnp.array([1.0, 2.0]), (0.0, 1.0))
    loss = lambda p: jnp.sum(hx.solve(prob, p=p, sensealg=METHODS[method], rtol=1e-10, atol=1e-10).us[-1])
    gradient = jax.jit(jax.grad(loss, allow_int=True))(p)
    assert gradient["count"].dtype == gradient["on"].dtype == jax.dtypes.float0
    assert float(gradient["rate"]) == pytest.approx(-2 * np.exp(-0.8) - 6 * np.exp(-1.2), rel=1e-8)


@pytest.mark.parametrize("method", ["interpolating"])
def test_no_parameters_is_fine(method):
    prob = hx.ODEProblem(lambda u, p, t: -u if p is None else u, jnp.ones(1), (0.0, 1.0), None)
    gradient = jax.jit(jax.grad(lambda u: hx.solve(prob, u0=u, sensealg=METHODS[method], **OPTIONS).us[-1, 0]))
    np.testing.assert_allclose(gradient(prob.u0), [np.exp(-1.0)], rtol=1e-7)


@pytest.mark.parametrize("method", ["quadrature"])
def test_an_unused_parameter_gets_exact_zeros(method):
    def loss(p):
        prob = hx.ODEProblem(lambda u, p, t: -p["used"] * u, jnp.ones(1), (0.0, 1.0), p)
        return jnp.sum(hx.solve(prob, sensealg=METHODS[method], **OPTIONS).us)

    gradient = jax.jit(jax.grad(loss))({"used": jnp.array(1.0), "unused": jnp.ones((2, 3))})
    np.testing.assert_array_equal(gradient["unused"], np.zeros((2, 3)))
    assert gradient["used"] != 0


@EVERY
def test_a_complex_state_has_the_gradient_of_the_closed_form(method):
    """u' = w u, and u <- g u at t = 0.5: u(1) = g exp(w) u0."""

    def loss(solved, u0, w, g):
        if solved:
            prob = hx.ODEProblem(lambda u, p, t: w * u, u0, (0.0, 1.0))
            callback = hx.PresetTimeCallback(TIMES, lambda u, p, t: g * u, save_positions=(False, False))
            end = hx.solve(prob, callback=callback, sensealg=METHODS[method], rtol=1e-10, atol=1e-10).us[-1]
        else:
            end = g * jnp.exp(w) * u0
        return jnp.sum(jnp.abs(end - jnp.array([1.0 + 0j, 0.5j])) ** 2)

    arguments = jnp.array([1.0 + 0.5j, -0.3 + 1j]), jnp.array(-0.2 + 2j), jnp.array(0.8 - 0.1j)
    got, exact = (jax.jit(jax.grad(functools.partial(loss, s), (0, 1, 2)))(*arguments) for s in (True, False))
    for a, b in zip(got, exact, strict=True):
        assert a.dtype == b.dtype
        assert relative_error(a, b) < 1e-7


@functools.lru_cache(maxsize=None)
def gradient_of_dtype(dtype, method):
    def loss(u0, p):
        prob = hx.ODEProblem(lambda u, p, t: p * jnp.sin(u[::-1]) - t * u, u0, (0.0, 1.0), p)
        callback = hx.PeriodicCallback(lambda u, p, t: u + p, 0.3)
        sol = hx.solve(prob, callback=callback, sensealg=METHODS[method], rtol=1e-5, atol=1e-5)
        assert sol.us.dtype == sol.ts.dtype == dtype
        return jnp.sum(sol.us**2)

    return jax.jit(jax.grad(loss, (0, 1)))(jnp.array([1.0, 0.4], dtype), jnp.array([0.5, 1.5], dtype))


@EVERY
def test_float32_stays_float32_and_agrees_with_float64(method):
    single, double = gradient_of_dtype(np.float32, method), gradient_of_dtype(np.float64, "discrete")
    assert all(x.dtype == np.float32 for x in single)
    assert relative_error(single, double) < 1e-3


@pytest.mark.parametrize("method", ["gauss"])
def test_a_scalar_state_works(method):
    prob = hx.ODEProblem(lambda u, p, t: -p * u, jnp.array(2.0), (0.0, 1.0), jnp.array(0.5))
    loss = lambda p: hx.solve(prob, p=p, sensealg=METHODS[method], **OPTIONS).us[-1]
    assert float(jax.jit(jax.grad(loss))(prob.p)) == pytest.approx(-2 * np.exp(-0.5), rel=1e-7)
