"""Every term of the jump rule has a closed form that fails without it: proved by removing the terms, one at a time.

One straight line with one event serves all cases, so that each method compiles once, and so does the rule whose terms can
be switched off:

    u' = v,  u(0) = u0,  0 <= t <= T        g = gain u                      c = k u + r t - theta
    w = A u + B t + C                       P: v <- E v + F u + G t

With r = 0, k = 1 the event happens at tau = (theta - u0) / v; with k = 0, r = 1 it is a clock, tau = theta. What a case
does not name is zero, but E = 1; L is what the case saves: the left or right limit, the end, or the integral of g.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridax.adjoint import jumps
from hybridax.adjoint.programs import clear_cache
from methods import METHODS
from reference import gradient as complex_step

import hybridax as hx

T, U0, V, THETA = 2.0, 0.3, 1.1, 1.0


class P(NamedTuple):
    v: Any = V
    A: Any = 0.0
    B: Any = 0.0
    C: Any = 0.0
    E: Any = 1.0
    F: Any = 0.0
    G: Any = 0.0
    k: Any = 0.0
    r: Any = 0.0
    theta: Any = THETA
    gain: Any = 0.0


SURFACE, CLOCK = {"k": 1.0}, {"r": 1.0}


class Case(NamedTuple):
    """Coefficients, what L is, and derivatives by hand; ``u0`` names the start."""

    p: P
    loss: str
    by_hand: dict[str, float]


def forgets():
    """u(T) = C + v (T - tau), tau = (theta - u0) / v:  du0: 1,  dtheta: -1 (all of it by c_p),  dv: T."""
    return Case(P(C=1.4, **SURFACE), "end", {"u0": 1.0, "theta": -1.0, "v": T})


def forgets_at_a_moving_surface():
    """u(T) = C + v (T - tau), tau = (theta - u0) / (v + r):  du0: v / (v + r),  dtheta: -v / (v + r)."""
    r = 0.5
    return Case(P(C=1.4, k=1.0, r=r), "end", {"u0": V / (V + r), "theta": -V / (V + r)})


def scales():
    """u(T) = A (u0 + v theta) + v (T - theta) + C:  du0: A,  dC: 1,  dtheta: A v - v."""
    A = 0.7
    return Case(P(A=A, **CLOCK), "end", {"u0": A, "C": 1.0, "theta": A * V - V})


def reads_the_time():
    """u(T) = B tau + v (T - tau), tau = (theta - u0) / v:  dtheta: (B - v) / v,  du0: -(B - v) / v."""
    B = 2.0
    return Case(P(B=B, **SURFACE), "end", {"theta": (B - V) / V, "u0": (V - B) / V})


def writes_from_the_state():
    """u(T) = y + F y (T - theta), y = u0 + v theta:  du0: 1 + F (T - theta),  dtheta: v + F v (T - theta) - F y."""
    F, y = 0.8, U0 + V * THETA
    return Case(P(A=1.0, E=0.0, F=F, **CLOCK), "end", {"u0": 1 + F * (T - THETA), "theta": V + F * V * (T - THETA) - F * y})


def writes_from_the_parameters():
    """u(T) = u0 + v theta + E v (T - theta):  dE: v (T - theta),  dv: theta + E (T - theta)."""
    E = 0.9
    return Case(P(A=1.0, E=E, **CLOCK), "end", {"E": V * (T - THETA), "v": THETA + E * (T - THETA)})


def writes_from_the_time():
    """u(T) = u0 + v theta + G theta (T - theta):  dtheta: v + G (T - 2 theta)."""
    return Case(P(A=1.0, E=0.0, G=0.5, **CLOCK), "end", {"theta": V + 0.5 * (T - 2 * THETA)})


def saves_the_left_limit():
    """L = u0 + v theta:  du0: 1,  dtheta: v,  dv: theta."""
    return Case(P(A=0.7, **CLOCK), "left", {"u0": 1.0, "theta": V, "v": THETA})


def saves_the_right_limit():
    """L = A (u0 + v theta):  du0: A,  dtheta: A v (f+, by which the limit moves, drops out),  dv: A theta."""
    return Case(P(A=0.7, **CLOCK), "right", {"u0": 0.7, "theta": 0.7 * V, "v": 0.7 * THETA})


def costs_on_both_sides():
    """L = gain (u0 T + v T^2 / 2 + C (T - theta)):  dtheta: gain (g- - g+) = -gain C,  dC: gain (T - theta)."""
    C, gain = 0.5, 1.3
    return Case(P(A=1.0, C=C, gain=gain, **CLOCK), "cost", {"theta": -gain * C, "C": gain * (T - THETA), "u0": gain * T})


CASES = {f.__name__: f() for f in (
    forgets, forgets_at_a_moving_surface, scales, reads_the_time, writes_from_the_state, writes_from_the_parameters,
    writes_from_the_time, saves_the_left_limit, saves_the_right_limit, costs_on_both_sides,
)}  # fmt: skip
LOSSES = ["left", "right", "end", "cost"]


def exact(x, loss):
    """L in closed form, of the vector (u0, *p)."""
    u0, p = x[0], P(*x[1:])
    tau = (p.theta - p.k * u0) / (p.k * p.v + p.r)
    left = u0 + p.v * tau
    right, v = p.A * left + p.B * tau + p.C, p.E * p.v + p.F * left + p.G * tau
    rest = T - tau
    cost = p.gain * (u0 * tau + p.v * tau**2 / 2 + right * rest + v * rest**2 / 2)
    return {"left": left, "right": right, "end": right + v * rest, "cost": cost}[loss]


def affect(u, p, t):
    return p.A * u + p.B * t + p.C, p._replace(v=p.E * p.v + p.F * u[0] + p.G * t)


CALLBACK = hx.ContinuousCallback(lambda u, p, t: p.k * u[0] + p.r * t - p.theta, affect, affects_params=True)
PROBLEM = hx.ODEProblem(
    lambda u, p, t: p.v * jnp.ones_like(u),
    jnp.array([U0]),
    (0.0, T),
    callback=CALLBACK,
    running_cost=lambda u, p, t: p.gain * u[0],
    max_events=2,
    max_steps=64,
    rtol=1e-10,
    atol=1e-10,
)


def solved(case, method):
    """L and its gradient, by name."""
    chosen = jnp.array([float(name == case.loss) for name in LOSSES])  # a sum, so that all cases have one program

    def value(u0, p):
        sol = hx.solve(PROBLEM, u0=jnp.reshape(u0, (1,)), p=p, sensealg=METHODS[method])
        return jnp.sum(chosen * jnp.append(sol.us[1:4, 0], sol.cost))

    p = P(*(jnp.asarray(x) for x in case.p))
    got, (du0, dp) = jax.value_and_grad(value, (0, 1))(jnp.asarray(U0), p)
    return float(got), {"u0": float(du0), **{k: float(x) for k, x in dp._asdict().items()}}


@functools.cache
def closed_form(name):
    case = CASES[name]
    x = np.array([U0, *case.p])
    return exact(x, case.loss), dict(zip(["u0", *P._fields], complex_step(lambda z: exact(z, case.loss), x), strict=True))


def agrees(got, expected):
    return all(got[key] == pytest.approx(value, rel=1e-8, abs=1e-8) for key, value in expected.items())


@pytest.mark.parametrize("name", CASES)
def test_derivatives_by_hand_are_those_of_the_closed_form(name):
    assert agrees(closed_form(name)[1], CASES[name].by_hand)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_the_closed_form_in_every_entry(name, method):
    got, gradient = solved(CASES[name], method)
    value, expected = closed_form(name)
    assert got == pytest.approx(value, rel=1e-9)
    assert agrees(gradient, expected), (gradient, expected)


# ------------------------------------------------------------------ without a term
TERMS = {
    "w_u": "scales",
    "w_p": "scales",
    "w_t": "reads_the_time",
    "P_u": "writes_from_the_state",
    "P_p": "writes_from_the_parameters",
    "P_t": "writes_from_the_time",
    "c_u": "forgets_at_a_moving_surface",
    "c_p": "forgets",
    "c_t": "forgets_at_a_moving_surface",
    "l_left": "saves_the_left_limit",
    "l_right": "saves_the_right_limit",
    "g- minus g+": "costs_on_both_sides",
    "f- and f+": "scales",
}


@pytest.fixture(scope="module")
def removed():
    """A set of terms; those in it are missing from the jump rule, in one and the same compiled program."""
    removed: set[str] = set()

    def switch(term):
        assert term in TERMS
        return jax.pure_callback(lambda: np.float64(term not in removed), jax.ShapeDtypeStruct((), np.float64))

    def by(prefix, args):
        """(theta, u, t, ...) with the derivatives by theta, u and t on a switch."""
        held = jax.lax.stop_gradient
        scaled = lambda k: lambda x: held(x) + k * (x - held(x)) if jnp.issubdtype(x.dtype, jnp.inexact) else x
        first = [jax.tree.map(scaled(switch(f"{prefix}_{a}")), x) for a, x in zip("put", args[:3], strict=True)]
        return *first, *args[3:]

    def maps(affect, original=jumps.maps):
        inner = original(affect)
        return lambda *args: (inner(*by("w", args))[0], inner(*by("P", args))[1])

    def surface(conditions, original=jumps.surface):
        inner = original(conditions)
        return lambda *args: inner(*by("c", args))

    def event_limits(*args, original=jumps.event_limits):
        here = original(*args)
        return here._replace(l_left=switch("l_left") * here.l_left, l_right=switch("l_right") * here.l_right)

    def slope(*args, original=jumps.slope):
        f = original(*args)  # the running cost is the last component
        return jnp.concatenate([switch("f- and f+") * f[..., :-1], switch("g- minus g+") * f[..., -1:]], -1)

    clear_cache()
    with pytest.MonkeyPatch.context() as patch:
        for mutant in (maps, surface, event_limits, slope):
            patch.setattr(jumps, mutant.__name__, mutant)
        yield removed
    clear_cache()


@pytest.mark.parametrize("name", CASES)
def test_with_all_terms_every_case_holds(name, removed):
    removed.clear()
    assert agrees(solved(CASES[name], "discrete")[1], closed_form(name)[1])


@pytest.mark.parametrize("term", TERMS)
def test_without_the_term_its_case_fails(term, removed):
    removed.clear()
    removed.add(term)
    _, gradient = solved(CASES[TERMS[term]], "discrete")
    assert np.all(np.isfinite(list(gradient.values())))
    assert not agrees(gradient, CASES[TERMS[term]].by_hand)
