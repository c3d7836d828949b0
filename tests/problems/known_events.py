"""Cases with events at known times: S13, C2 to C9, P7."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import hybridax as hx

from .case import GOLD_CASES, Case, Gold, end, gold_of, golds, squared_distance, total
from .smooth import LOTKA

NEITHER, BOTH = (False, False), (True, True)
SUM_AND_MSE = {"sum": total, "mse": squared_distance(1.0)}


# ------------------------------------------------------------------ S13: a parameter for each quarter of the span
def _switched(u, p, t):
    a = p[jnp.round(u[2]).astype(int)]
    x, y = u[0], u[1]
    return jnp.stack([a * x - x * y, -a * y + x * y, jnp.zeros((), u.dtype)])


def _advance(u, p, t):
    return u.at[2].add(1.0)


def _s13(name: str, u0: list[float]) -> Case:
    problem = hx.ODEProblem(_switched, jnp.array([*u0, 0.0]), (0.0, 4.0), jnp.ones(4))

    def loss(sol, p):
        return jnp.sum(sol.us[:, :2])

    def callback(p):
        return hx.PresetTimeCallback(np.array([1.0, 2.0, 3.0]), _advance, save_positions=NEITHER)

    return Case(f"S13 {name}", problem, {"sum": loss}, {"sum": gold_of("S13", name)}, 41, callback, {"saveat": 0.1})


S13 = {"off_equilibrium": _s13("off_equilibrium", [1.0, 1.2]), "sum": _s13("sum", [1.0, 1.0])}


# ------------------------------------------------------------------ C2 to C7: Lotka-Volterra with jumps
def _identity(u, p, t):
    return u


def _add_two(u, p, t):
    return u.at[0].add(2.0)


def _nonlinear(u, p, t):
    return u + p[1] / 8 * jnp.sin(u)


def _forget(u, p, t):
    return u.at[0].set(2.0)


def _change_parameters(u, p, t):
    return u, 2 * p - 0.5


def _jumps(case: str, times: list[float], affect, **kwargs) -> Case:
    def callback(p):
        return hx.PresetTimeCallback(np.array(times), affect, **{"save_positions": BOTH, **kwargs})

    rows = GOLD_CASES[case]["rows"]
    return Case(case, LOTKA, SUM_AND_MSE, golds(case, "sum", "mse"), rows, callback, {"saveat": 0.5})


def affine_and_sine(a, b, c):
    """u <- a + b u + c p[1] / 8 sin(u), its numbers in captured arrays: C2, C3, C5 and C6 as one compiled solve."""
    held = jnp.array([a, b, [c, c]])

    def affect(u, p, t):
        return held[0] + held[1] * u + held[2] * p[1] / 8 * jnp.sin(u)

    return affect


C2 = _jumps("C2", [5.0], _identity)
C3 = _jumps("C3", [5.0], _add_two)
C4 = _jumps("C4", [2.03, 4.0, 8.0], _add_two)
C5 = _jumps("C5", [5.0], _nonlinear)
C6 = _jumps("C6", [5.0], _forget)
C7 = _jumps("C7", [5.1], _change_parameters, affects_params=True)
C = [C2, C3, C4, C5, C6, C7]
C_BY_NUMBERS = [
    _jumps("C2", [5.0], affine_and_sine([0.0, 0.0], [1.0, 1.0], 0.0)),
    _jumps("C3", [5.0], affine_and_sine([2.0, 0.0], [1.0, 1.0], 0.0)),
    _jumps("C5", [5.0], affine_and_sine([0.0, 0.0], [1.0, 1.0], 1.0)),
    _jumps("C6", [5.0], affine_and_sine([2.0, 0.0], [0.0, 1.0], 0.0)),
]


# ------------------------------------------------------------------ C9: a dose, at a known or at a learned time
def _washout(u, p, t):
    return p[:1] - u


def _dose(u, p, t):
    return u + p[1:]


def dosing(save_positions: tuple[bool, bool]) -> Case:
    problem = hx.ODEProblem(_washout, jnp.zeros(1), (0.0, 10.0), jnp.array([100.0, 50.0]))

    def callback(p):
        return hx.PresetTimeCallback(np.array([8.0]), _dose, save_positions=save_positions)

    title = f"C9 save_positions={save_positions}"
    losses = {"end": lambda sol, p: jnp.sum(end(sol))}
    return Case(title, problem, losses, golds("C9", "end"), 2 + sum(save_positions), callback)


class TimedDose(NamedTuple):
    """Inflow and dose, and the time of the dose."""

    amounts: jnp.ndarray
    time: jnp.ndarray


def _timed_dosing() -> Case:
    p = TimedDose(jnp.array([100.0, 50.0]), jnp.array([8.0]))
    problem = hx.ODEProblem(lambda u, p, t: _washout(u, p.amounts, t), jnp.zeros(1), (0.0, 10.0), p)

    def callback(p):
        return hx.PresetTimeCallback(p.time, lambda u, q, t: _dose(u, q.amounts, t), save_positions=NEITHER)

    gold = gold_of("C9", "end")
    grad_time = GOLD_CASES["C9"]["gold"]["end_dose_time"]["grad_time"]
    losses = {"end": lambda sol, p: jnp.sum(end(sol))}
    gold = {"end": Gold(gold.loss, gold.grad_u0, np.append(gold.grad_p, grad_time))}
    return Case("C9 at a learned time", problem, losses, gold, 2, callback)


C9 = [dosing((left, right)) for left in (False, True) for right in (False, True)]
C9_TIME = _timed_dosing()


# ------------------------------------------------------------------ P7: a switch whose time is learned
def _p7() -> Case:
    def rhs(u, p, t):
        y, _, on = u
        return jnp.stack([on - y, y, jnp.zeros((), u.dtype)])

    def callback(p):
        return hx.PresetTimeCallback(p, lambda u, p, t: u.at[2].set(1.0), save_positions=NEITHER)

    problem = hx.ODEProblem(rhs, jnp.array([1.0, 0.0, 0.0]), (0.0, 1.0), jnp.array([0.5]))
    entry = GOLD_CASES["P7"]["gold"]["S"]
    losses = {"S": lambda sol, p: end(sol)[1]}
    gold = {"S": Gold(entry["loss"], None, np.array([entry["grad_time"]]))}
    return Case("P7", problem, losses, gold, 2, callback, tolerance=1e-8)


P7 = _p7()
