"""Random piecewise-linear systems with random guards, against an event-by-event reference with SciPy.

    x' = A_m x + b_m,  m in {0, 1};      guard i is crossed where g_i . x + s_i t = d_i, either way, i in {0, 1}
    guard 0:  x <- J_0 x + k_0,  m <- 1 - m          guard 1:  x <- J_1 x + k_1,  b_m <- r b_m for both m

The mode m is a component of the state, b is written by the affect. The reference moves x by matrix exponentials, finds
crossings by sampling and brentq, and is differentiated by central differences along random directions. Draws in which
something nearly touches or nearly coincides are drawn again: there the gradient does not exist.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from methods import ALL, TWO
from scipy.linalg import expm
from scipy.optimize import brentq

import hybridax as hx

T1, SAVES, CLEAR = 1.5, (0.31, 0.77, 1.23), 0.03
SHAPES = {"A": (2, 2, 2), "b": (2, 2), "g": (2, 2), "s": (2,), "d": (2,), "J": (2, 2, 2), "k": (2, 2), "r": ()}
SAMPLES = 60


class Draw(NamedTuple):
    x: np.ndarray  # u0 (2) and the parameters, end to end
    events: int


def split(x):
    """(u0, p) from one vector."""
    p, at = {}, 2
    for name, shape in SHAPES.items():
        size = int(np.prod(shape, dtype=int))
        p[name] = x[at : at + size].reshape(shape)
        at += size
    return x[:2], p


def weights(rows):
    i, j = np.meshgrid(np.arange(rows), np.arange(2), indexing="ij")
    return np.cos(1.0 + 2 * i + 3 * j)


# ------------------------------------------------------------------ the reference
class Unclear(Exception):
    """Something nearly touches or coincides."""


def follow(x, margin=0.0):
    """Rows ``(R, 2)`` and event times; `Unclear` where two of the things that decide them are within ``margin``."""
    u, p = split(x)
    t, mode, b, rows, events = 0.0, 0, p["b"], [u], []
    saves = [*SAVES, T1]
    while saves:
        move = Flow(p["A"][mode], b[mode])
        guard = lambda x, s: x @ p["g"].T + p["s"] * s - p["d"]
        hit = first_crossing(guard, move, u, t, margin)
        until = T1 if hit is None else hit[0]
        if margin and any(abs(s - until) < margin for s in (t, *saves) if hit is not None):
            raise Unclear
        rows += [move(u, s - t) for s in saves if s <= until]
        saves = [s for s in saves if s > until]
        if hit is None:
            break
        until, which = hit
        u = move(u, until - t)
        rows.append(u)
        u, t = p["J"][which] @ u + p["k"][which], until
        mode, b = (1 - mode, b) if which == 0 else (mode, p["r"] * b)
        rows.append(u)
        events.append(until)
        if len(events) > 6:
            raise Unclear
    return np.stack(rows), events


class Flow:
    """x' = A x + b, as a matrix for (x, 1)."""

    def __init__(self, A, b):
        self.M = np.zeros((3, 3))
        self.M[:2, :2], self.M[:2, 2] = A, b

    def matrix(self, h):
        """exp(M h), by scaling, Taylor and squaring: a hundredth of the time of scipy.linalg.expm at this size."""
        small, total, term = self.M * (h / 64), np.eye(3), np.eye(3)
        for n in range(1, 13):
            term = term @ small / n
            total = total + term
        for _ in range(6):
            total = total @ total
        return total

    def __call__(self, u, h):
        return (self.matrix(h) @ np.append(u, 1.0))[:2]


def first_crossing(guard, move, u, t, margin):
    """The first time after t at which a component of ``guard`` changes sign, and which one."""
    times = np.linspace(t, T1, SAMPLES + 1)
    states = [u]
    step_matrix = move.matrix(times[1] - t)
    for _ in range(SAMPLES):
        states.append(step_matrix[:2, :2] @ states[-1] + step_matrix[:2, 2])
    values = guard(np.stack(states), times[:, None])
    if margin and np.min(np.abs(values[0])) < margin:
        raise Unclear
    crossed = values[:-1] * values[1:] < 0
    step = int(np.argmax(np.any(crossed, 1))) if np.any(crossed) else SAMPLES
    if margin:
        inner = values[: step + 2]
        slopes = np.abs(np.diff(inner, axis=0)) / (times[1] - times[0])
        # a turn of a guard near zero, or a flat or doubtful crossing
        turns = (np.diff(np.sign(np.diff(inner, axis=0)), axis=0) != 0) & (np.abs(inner[1:-1]) < 5 * margin)
        if np.any(turns) or (step < SAMPLES and (crossed[step].sum() > 1 or np.any(slopes[step][crossed[step]] < 0.3))):
            raise Unclear
    if step == SAMPLES:
        return None
    which, from_here = int(np.argmax(crossed[step])), states[step]
    value = lambda s: guard(move(from_here, s - times[step]), s)[which]
    return brentq(value, times[step], times[step + 1], xtol=1e-15, rtol=1e-15), which


def reference_loss(x, rows=None):
    us, _ = follow(x)
    assert rows is None or len(us) == rows
    return np.sum(weights(len(us)) * us**2)


def reference_slopes(x, directions, rows, h=1e-6):
    return np.array([(reference_loss(x + h * e, rows) - reference_loss(x - h * e, rows)) / (2 * h) for e in directions])


@st.composite
def draws(draw):
    """A clear system with one to four events."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    while True:
        p = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
        x = np.concatenate([rng.normal(size=2), *(np.ravel(v) for v in p.values())])
        try:
            _, events = follow(x, CLEAR)
        except Unclear:
            continue
        if 1 <= len(events) <= 4:
            return Draw(x, len(events))


# ------------------------------------------------------------------ the library
def rhs(u, p, t):
    A = p["A"][0] + u[2] * (p["A"][1] - p["A"][0])
    b = p["b"][0] + u[2] * (p["b"][1] - p["b"][0])
    return jnp.append(A @ u[:2] + b, 0.0)


def guards(u, p, t):
    return p["g"] @ u[:2] + p["s"] * t - p["d"]


def affect(u, p, t, which):
    x = p["J"][which] @ u[:2] + p["k"][which]
    mode = jnp.where(which == 0, 1 - u[2], u[2])
    return jnp.append(x, mode), p | {"b": jnp.where(which == 0, p["b"], p["r"] * p["b"])}


CALLBACK = hx.ContinuousCallback(guards, affect, affects_params=True)


def loss(x, method):
    u0, p = split(x)
    prob = hx.ODEProblem(rhs, jnp.append(u0, 0.0), (0.0, T1), p, callback=CALLBACK, max_events=8, max_steps=512)
    sol = hx.solve(prob, saveat=[0.0, *SAVES, T1], rtol=1e-10, atol=1e-10, sensealg=ALL[method])
    us = jnp.where(sol.valid[:, None], sol.us[:, :2], 0.0)
    return jnp.sum(weights(us.shape[0]) * us**2), sol.events.times


def test_the_flow_of_the_reference_is_the_matrix_exponential():
    move = Flow(np.array([[0.3, -2.0], [1.4, -0.8]]), np.array([0.7, -0.2]))
    np.testing.assert_allclose(move.matrix(1.5), expm(1.5 * move.M), rtol=1e-13)


@settings(max_examples=max(1, settings.default.max_examples // 2))
@given(draws())
def test_gradients_through_random_guards_match_the_reference(case):
    us, events = follow(case.x)
    directions = np.random.default_rng(0).normal(size=(6, case.x.size))
    expected = reference_slopes(case.x, directions, len(us))
    for method in TWO:
        (value, times), got = jax.value_and_grad(loss, has_aux=True)(jnp.asarray(case.x), method)
        np.testing.assert_allclose(times[: case.events], events, rtol=1e-8)
        assert np.all(np.isinf(times[case.events :])), method
        assert float(value) == pytest.approx(reference_loss(case.x), rel=1e-7, abs=1e-7), method
        scale = 1 + np.linalg.norm(got) * np.linalg.norm(directions, axis=1)
        assert np.all(np.abs(directions @ np.asarray(got) - expected) < 1e-6 * scale), method
