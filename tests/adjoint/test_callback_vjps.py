"""Hand-written products of affects and conditions: they are called, nothing is called in their place, same gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from counting import compilations
from methods import METHODS
from problems.case import relative_error

import hybridax as hx

U0, P = jnp.array([0.6, 1.0]), jnp.array([0.8, 1.4, 0.9])


@jax.custom_jvp
def undifferentiable(x):
    """The identity; asking JAX for its derivative is an error."""
    return x


@undifferentiable.defjvp
def _(primals, tangents):
    raise AssertionError("JAX differentiated a function that brings its own product")


def f(u, p, t):
    return jnp.stack([u[1], -p[0] * jnp.sin(u[0])])


def kick(wrap, u, p, t):
    return wrap(jnp.stack([u[0] * p[1], u[1] + p[2] * u[0]]))


def kick_vjp(calls, lam, u, p, t):
    calls.append("affect")
    zero = jnp.zeros(())
    return (
        jnp.stack([lam[0] * p[1] + lam[1] * p[2], lam[1]]),
        jnp.stack([zero, lam[0] * u[0], lam[1] * u[0]]),
    )


def rewrite(wrap, u, p, t):
    return kick(wrap, u, p, t), wrap(p * (1 + 0.1 * u[0]))


def rewrite_vjp(calls, lam, u, p, t):
    du, dp = kick_vjp(calls, lam[0], u, p, t)
    return du + 0.1 * jnp.stack([jnp.sum(lam[1] * p), jnp.zeros(())]), dp + lam[1] * (1 + 0.1 * u[0])


def level(wrap, u, p, t):
    return wrap(u[0] * p[2] - 0.9)


def level_vjp(calls, bar, u, p, t):
    calls.append("condition")
    zero = jnp.zeros(())
    return jnp.stack([bar * p[2], zero]), jnp.stack([zero, zero, bar * u[0]])


def by_jax(function):
    return functools.partial(function, lambda x: x), None


def by_hand(function, vjp, calls):
    """The t part has to be given too: JAX's own would differentiate."""
    both = functools.partial(vjp, calls)
    parts = dict(
        vjp_u=lambda *x: both(*x)[0], vjp_p=lambda *x: both(*x)[1], vjp_t=lambda lam, u, p, t: jnp.zeros_like(t)
    )
    return functools.partial(function, undifferentiable), hx.HandWrittenVJP(**parts)


def past_half(u, p, t, tprev):
    return (t >= 0.5) & (tprev < 0.5)


def periodic(affect, vjp, *_):
    return hx.PeriodicCallback(affect, 0.3, initial_affect=True, affect_vjp=vjp)


def crossing(affect, vjp, condition, condition_vjp):
    return hx.ContinuousCallback(condition, affect, affect_vjp=vjp, condition_vjp=condition_vjp)


CASES = {
    "periodic": (periodic, kick, kick_vjp),
    "writes p": (lambda a, v, *_: hx.PresetTimeCallback([0.4], a, affects_params=True, affect_vjp=v), rewrite, rewrite_vjp),
    "discrete": (lambda a, v, *_: hx.DiscreteCallback(past_half, a, affect_vjp=v), kick, kick_vjp),
    "continuous": (crossing, kick, kick_vjp),
}


def gradient(callback, method):
    def loss(u0, p):
        prob = hx.ODEProblem(f, u0, (0.0, 1.0), p, callback=callback, rtol=1e-9, atol=1e-9)
        sol = hx.solve(prob, sensealg=METHODS[method], max_events=4, saveat=np.array([1.0]))
        return jnp.sum(jnp.where(sol.valid[:, None], sol.us, 0.0) ** 2)

    return jax.jit(jax.grad(loss, (0, 1)))(U0, P)


@functools.lru_cache(maxsize=None)
def expected(case, method):
    make, affect, _ = CASES[case]
    return gradient(make(*by_jax(affect), *by_jax(level)), method)


@pytest.mark.parametrize("case, method", [(c, m) for i, c in enumerate(CASES) for m in (["discrete", "backsolve"][i % 2],)])
def test_hand_written_products_are_used_and_give_the_gradient_of_jax(case, method):
    make, affect, vjp = CASES[case]
    calls = []
    by_hands = make(*by_hand(affect, vjp, calls), *by_hand(level, level_vjp, calls))
    assert relative_error(gradient(by_hands, method), expected(case, method)) < 1e-12
    assert set(calls) == ({"affect", "condition"} if case == "continuous" else {"affect"})


def test_other_backends_do_for_an_affect_as_well():
    got = gradient(periodic(by_jax(kick)[0], hx.FiniteDifferenceVJP()), "discrete")
    assert relative_error(got, expected("periodic", "discrete")) < 1e-8


def test_another_product_of_the_same_affect_is_another_program_and_the_same_one_is_not():
    """Outside jit: programs are found by what they compute, products included."""
    affect = by_jax(kick)[0]

    def run(vjp):
        # the callback and its affect are made anew
        callback = hx.PeriodicCallback(lambda u, p, t: affect(u, p, t), 0.3, affect_vjp=vjp)
        prob = hx.ODEProblem(f, U0, (0.0, 1.0), callback=callback)
        return jax.grad(lambda p: jnp.sum(hx.solve(prob, p=p).us[-1]))(P)

    right, wrong = functools.partial(kick_vjp, []), lambda lam, u, p, t: (lam, jnp.zeros_like(p))
    first, other = run(right), run(wrong)
    assert relative_error(first, run(None)) < 1e-12
    with compilations() as compiled:
        np.testing.assert_array_equal(run(right), first)
    assert compiled.count == 0
    assert relative_error(other, first) > 1e-2


def test_affects_with_derivatives_of_their_own_do_not_share_a_program():
    """A derivative written inline cannot be compared; one right-hand side, one value, two derivatives."""

    def gain(slope):
        @jax.custom_vjp
        def affect(u):
            return 2.0 * u

        affect.defvjp(lambda u: (2.0 * u, None), lambda _, bar: (slope * bar,))
        return hx.PeriodicCallback(lambda u, p, t: affect(u), 0.5)

    def run(callback):
        prob = hx.ODEProblem(f, U0, (0.0, 1.0), P, callback=callback)
        return jax.grad(lambda u0: jnp.sum(hx.solve(prob, u0=u0).us[-1]))(U0)

    np.testing.assert_allclose(run(gain(6.0)), 3 * run(gain(2.0)), rtol=1e-12)


def test_a_wrong_product_is_named():
    with pytest.raises(TypeError, match="affect_vjp must be a function"):
        hx.PeriodicCallback(lambda u, p, t: u, 0.1, affect_vjp=3)
    callback = periodic(by_jax(kick)[0], lambda lam, u, p, t: lam)
    with pytest.raises(TypeError, match=r"affect_vjp: vjp must return the pair \(u part, p part\)"):
        gradient(callback, "discrete")


def test_arrays_that_products_close_over_may_be_traced_by_an_enclosing_gradient():
    """y' = -y, less 0.5 where it falls to w, and w y^2 at 0.5: the closed form's gradient by w, which products close over."""

    def final(w, hand):
        known = dict(affect_vjp=lambda lam, u, p, t: (2 * w * u * lam, None)) if hand else {}
        root = dict(condition_vjp=lambda c, u, p, t: (c * jnp.ones(1), None)) if hand else {}
        callbacks = hx.CallbackSet(
            hx.PresetTimeCallback([0.5], lambda u, p, t: w * u**2, save_positions=(False, False), **known),
            hx.ContinuousCallback(lambda u, p, t: u[0] - w, lambda u, p, t: u - 0.5, save_positions=(False, False), **root),
        )
        prob = hx.ODEProblem(lambda u, p, t: -u, jnp.array([2.0]), (0.0, 1.0), callback=callbacks)
        return hx.solve(prob, rtol=1e-9, atol=1e-9).us[-1, 0]

    # w - 0.5 at log(2 / w); so (2 - 1 / w) exp(-0.5) just before 0.5, and below w after it
    w = 1.4
    expected = (4 * (2 * w - 1) / w - (2 * w - 1) ** 2 / w**2) * np.exp(-1.5)
    for hand in (False, True):
        np.testing.assert_allclose(jax.grad(final)(jnp.array(w), hand), expected, rtol=1e-7)
