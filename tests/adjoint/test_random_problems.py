"""Random small hybrid problems: methods against complex-step derivatives of a flow of order 16 in NumPy.

Right-hand sides are linear or a small network, in either direction of time; 0 to 4 jumps, also at the ends; saves lie
anywhere, on jumps, and one unit in the last place beside them. Each number of jumps has its own save_positions, and
three jumps write parameters, so that few programs serve all examples. Every method takes the jumps that write
parameters, and one other number at least: one compiled gradient serves all examples of a method and a number.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from methods import KINDS, METHODS

import hybridax as hx

N, HIDDEN, SLOTS = 3, 4, 6
SHAPES = {
    "A": (N, N),
    "W1": (HIDDEN, N + 1),
    "b1": (HIDDEN,),
    "W2": (N, HIDDEN),
    "b2": (N,),
    "on": (1,),
    "M": (N, N),
    "v": (N,),
}
POSITIONS = {0: (False, False), 1: (True, False), 2: (False, True), 3: (False, False), 4: (True, True)}
WRITES = {3}
SOME = {
    0: ["quadrature"],
    1: ["interpolating", "gauss"],
    2: ["discrete", "backsolve"],
    3: KINDS,
    4: ["discrete", "quadrature", "backsolve_without_checkpoints"],
}


def unravel(p):
    out, at = {}, 0
    for name, shape in SHAPES.items():
        size = int(np.prod(shape))
        out[name] = p[at : at + size].reshape(shape)
        at += size
    return out


def rhs(xp, u, p, t):
    q = unravel(p)
    features = xp.concatenate([u, xp.sin(3 * t + 0 * u[:1])])
    return q["A"] @ u + q["on"] * (q["W2"] @ xp.tanh(q["W1"] @ features + q["b1"]) + q["b2"])


def jump(xp, u, p, t):
    q = unravel(p)
    return q["M"] @ u + q["v"] * xp.sin(t) + 0.3 * q["on"] * xp.sin(u)


def write(xp, u, p, t):
    return jump(xp, u, p, t), 0.95 * p + 0.05 * xp.sin(p) * xp.tanh(u[0])


class Problem(NamedTuple):
    u0: np.ndarray
    p: np.ndarray
    tspan: np.ndarray
    times: np.ndarray
    saves: np.ndarray
    inner: np.ndarray  # 1 where an event lies inside the span, 0 at its ends


@st.composite
def problems(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.sampled_from(list(POSITIONS)))
    linear, reverse = draw(st.booleans()), draw(st.booleans())
    at_start, at_end = draw(st.booleans()), draw(st.booleans())
    places = draw(st.lists(st.sampled_from(["free", "on", "before", "after", "edge"]), min_size=SLOTS, max_size=SLOTS))
    p = {name: rng.normal(size=shape) * 0.6 for name, shape in SHAPES.items()}
    p["on"] = np.array([0.0 if linear else 1.0])
    t0, t1 = -0.3, -0.3 + rng.uniform(0.5, 2.0)
    if reverse:
        t0, t1 = t1, t0
    at = lambda slot, low: t0 + (t1 - t0) * (slot + low + 0.2 * rng.uniform()) / SLOTS
    times, inner = np.array([at(i + 1, 0.6) for i in range(count)]), np.ones(count)
    if count and at_start:
        times[0], inner[0] = t0, 0.0
    if count > 1 and at_end:
        times[-1], inner[-1] = t1, 0.0
    saves = [at(slot, 0.2) for slot in range(SLOTS)]
    for slot, place in enumerate(places):
        if place in ("on", "before", "after") and slot < count:
            inward = {
                "on": times[slot],
                "before": np.nextafter(times[slot], t0),
                "after": np.nextafter(times[slot], t1),
            }
            saves[slot] = inward[place]
            # a row on an event is its left limit; moved to either side of the row, the event gives two derivatives
            inner[slot] = 0.0
        elif place == "edge" and slot == 0 and not (count and at_start):
            saves[slot] = t0
        elif place == "edge" and slot == SLOTS - 1 and not (count > 1 and at_end):
            saves[slot] = t1
    order = rng.permutation(SLOTS)
    flat = np.concatenate([np.ravel(p[name]) for name in SHAPES])
    return Problem(rng.normal(size=N), flat, np.array([t0, t1]), times, np.array(saves)[order], inner)


def weights(rows):
    i, j = np.meshgrid(np.arange(rows), np.arange(N), indexing="ij")
    return np.sin(1.0 + 2 * i + 3 * j)


def reference_loss(problem: Problem, u0, p, times):
    count = problem.times.size
    affect = write if count in WRITES else lambda xp, u, p, t: (jump(xp, u, p, t), p)
    jumps = [reference.Jump(t, lambda *x: affect(np, *x), POSITIONS[count]) for t in times]
    move = lambda u, p, a, b: reference.flow(lambda v, t: rhs(np, v, p, t), u, a, b, 0.25)
    rows = reference.rows(move, u0, p, tuple(problem.tspan), list(problem.saves), jumps)
    us = np.stack([row.u for row in rows])
    return np.sum(weights(len(rows)) * us**2)


@functools.lru_cache(maxsize=None)
def compiled(count, method):
    def loss(u0, p, times, tspan, saves):
        writes = count in WRITES
        affect = functools.partial(write if writes else jump, jnp)
        callback = hx.PresetTimeCallback(times, affect, save_positions=POSITIONS[count], affects_params=writes)
        prob = hx.ODEProblem(functools.partial(rhs, jnp), u0, (tspan[0], tspan[1]), p)
        sol = hx.solve(
            prob, callback=callback if count else None, saveat=saves, rtol=1e-10, atol=1e-10, sensealg=METHODS[method]
        )
        us = jnp.where(sol.valid[:, None], sol.us, 0.0)
        return jnp.sum(weights(us.shape[0]) * us**2)

    return jax.jit(jax.value_and_grad(loss, (0, 1, 2)))


@given(problems())
def test_methods_match_complex_steps_through_random_jumps_and_saves(problem):
    arguments = (problem.u0, problem.p, problem.times)
    rng = np.random.default_rng(0)
    directions = [rng.normal(size=x.shape) for x in arguments]
    directions[2] = directions[2] * problem.inner
    value = reference_loss(problem, *arguments)
    slopes = []
    for k, direction in enumerate(directions):
        at = lambda x, k=k: reference_loss(problem, *arguments[:k], x, *arguments[k + 1 :])
        slopes.append(reference.slope(at, arguments[k], direction) if direction.size else 0.0)
    for method in SOME[problem.times.size]:
        got, gradient = compiled(problem.times.size, method)(*arguments, problem.tspan, problem.saves)
        assert float(got) == pytest.approx(value, rel=1e-7, abs=1e-7), method
        for g, direction, slope in zip(gradient, directions, slopes, strict=True):
            scale = np.linalg.norm(g) * np.linalg.norm(direction) + 1.0
            assert abs(np.sum(g * direction) - slope) < 1e-6 * scale, method
