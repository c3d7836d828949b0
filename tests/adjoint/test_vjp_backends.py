"""Case V1 by its parts: hand-written vector-Jacobian products give the gradient that JAX's own give, part by part."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hybridax as hx

U0, P, TS = jnp.array([1.0, 1.0]), jnp.array([1.5, 1.0, 3.0, 1.0]), np.linspace(0.0, 10.0, 101)


def f(u, p, t):
    return jnp.stack([p[0] * u[0] - p[1] * u[0] * u[1], -p[2] * u[1] + p[3] * u[0] * u[1]])


def vjp_u(lam, u, p, t):
    first = lam[0] * (p[0] - p[1] * u[1]) + lam[1] * p[3] * u[1]
    return jnp.stack([first, -lam[0] * p[1] * u[0] + lam[1] * (p[3] * u[0] - p[2])])


def vjp_p(lam, u, p, t):
    return jnp.stack([lam[0] * u[0], -lam[0] * u[0] * u[1], -lam[1] * u[1], lam[1] * u[0] * u[1]])


BACKENDS = {
    "both parts": hx.HandWrittenVJP(vjp_u=vjp_u, vjp_p=vjp_p),
    "state part": hx.HandWrittenVJP(vjp_u=vjp_u),
    "one function": hx.HandWrittenVJP(vjp=lambda *x: (vjp_u(*x), vjp_p(*x))),
}


def test_hand_written_parts_give_the_gradient_of_jax():
    """By the discrete adjoint; test_cases_by_backend.py has the gold, test_backend_matrix.py crosses methods and backends."""

    def gradient(backend):
        prob = hx.ODEProblem(f, U0, (0.0, 10.0), P, vjp=backend, saveat=TS, rtol=1e-8, atol=1e-8)
        loss = lambda u0, p: jnp.sum(hx.solve(prob, u0=u0, p=p, sensealg=hx.DiscreteAdjoint()).us)
        return jax.jit(jax.grad(loss, (0, 1)))(U0, P)

    expected = gradient(hx.JaxVJP())
    for name, backend in BACKENDS.items():
        for got, want in zip(gradient(backend), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9 * float(jnp.max(jnp.abs(want))), err_msg=name)


def test_a_given_part_is_called_and_a_method_s_own_backend_wins():
    calls = []

    def counted(lam, u, p, t):
        calls.append("u")
        return vjp_u(lam, u, p, t)

    def never(*_):
        raise AssertionError("the backend of the problem was called")

    prob = hx.ODEProblem(f, U0, (0.0, 1.0), P, vjp=hx.HandWrittenVJP(vjp_u=never))
    method = hx.DiscreteAdjoint(vjp=hx.HandWrittenVJP(vjp_u=counted))
    gradient = jax.grad(lambda u0: jnp.sum(hx.solve(prob, u0=u0, sensealg=method).us[-1]))(U0)
    assert calls and np.all(np.isfinite(gradient))


def test_a_part_of_the_wrong_shape_is_refused_by_name():
    prob = hx.ODEProblem(f, U0, (0.0, 1.0), P, vjp=hx.HandWrittenVJP(vjp_p=lambda lam, u, p, t: jnp.zeros(3)))
    with pytest.raises(ValueError, match="vjp_p"):
        jax.grad(lambda p: jnp.sum(hx.solve(prob, p=p).us))(P)


def test_captured_arrays_get_their_gradient_beside_hand_written_parts():
    """u' = -k u with k captured, an int and a name in p: the closed form, and every leaf as the user gave it."""
    p = {"scale": jnp.array(0.5), "order": 2, "name": "decay", "steps": jnp.arange(3)}

    def f(u, p, t, k):
        assert p["order"] == 2 and p["name"] == "decay" and p["steps"].dtype == jnp.int64
        return -k * p["scale"] * u

    def vjp_u(lam, u, p, t):
        assert type(p["order"]) is int and p["name"] == "decay"
        return -1.5 * p["scale"] * lam

    def loss(k, backend):
        prob = hx.ODEProblem(lambda u, p, t: f(u, p, t, k), jnp.array([2.0]), (0.0, 1.0), p, vjp=backend)
        return hx.solve(prob, rtol=1e-10, atol=1e-10).us[-1, 0]

    for backend in (hx.HandWrittenVJP(vjp_u=vjp_u), hx.FiniteDifferenceVJP()):
        got = jax.grad(loss)(jnp.array(1.5), backend)
        np.testing.assert_allclose(got, -np.exp(-0.75), rtol=1e-8)


def by_products(k):
    """u' = -p k u with k in f and in its products; backends whose products hold k."""
    u_part = lambda lam, u, p, t: -p * k() * lam
    p_part = lambda lam, u, p, t: -jnp.sum(k() * lam * u)
    return (lambda u, p, t: -p * k() * u), hx.HandWrittenVJP(vjp_u=u_part, vjp_p=p_part)


def final(f, backend, p):
    return hx.solve(hx.ODEProblem(f, jnp.array([2.0]), (0.0, 1.0), p, vjp=backend), rtol=1e-9, atol=1e-9).us[-1, 0]


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.vmap])
def test_arrays_that_products_close_over_may_be_traced(transform):
    """2 exp(-p k), by k."""
    gradient = transform(jax.grad(lambda k: final(*by_products(lambda: k), jnp.array(0.5))))
    k = jnp.array([1.5, 2.5]) if transform is jax.vmap else jnp.array(1.5)
    np.testing.assert_allclose(gradient(k), -jnp.exp(-0.5 * k), rtol=1e-7)


@pytest.mark.parametrize("kind", [jnp.asarray, np.asarray, float])
def test_what_products_close_over_is_read_anew_by_every_solve(kind):
    held = [kind(1.5)]
    f, backend = by_products(lambda: held[0])
    for k in (1.5, 3.0):
        held[0] = kind(k)
        got = jax.grad(lambda p: final(f, backend, p))(jnp.array(0.5))
        np.testing.assert_allclose(got, -2 * k * np.exp(-0.5 * k), rtol=1e-7)


def test_a_product_with_other_arguments_is_refused_by_name():
    prob = hx.ODEProblem(f, U0, (0.0, 1.0), P, vjp=hx.HandWrittenVJP(vjp_p=lambda u, p, t: p))
    with pytest.raises(TypeError, match=r"vjp_p must take \(lam, u, p, t\); got vjp_p\(u, p, t\)"):
        jax.grad(lambda p: jnp.sum(hx.solve(prob, p=p).us))(P)
