"""Cases with events on the state, E1 to E8, W1, the bouncing ball; a callback after every step, H3; a cost, M1."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import optax

import hybridax as hx

from .case import GOLD_CASES, GOLD_ORACLES, Case, end, gold_from, golds, squared_distance, total
from .known_events import BOTH, NEITHER, SUM_AND_MSE
from .networks import mlp, wave_mlp
from .smooth import LOTKA
from .training import Training


# ------------------------------------------------------------------ E1 to E8: a falling ball
def fall(u, p, t):
    return jnp.stack([u[1], -p[0]])


BALL = hx.ODEProblem(fall, jnp.array([5.0, 0.0]), (0.0, 2.5), jnp.array([9.8, 0.8]))
AFFECTS = {
    "E1": (lambda u, p, t: u, NEITHER),
    "E2": (lambda u, p, t: u, BOTH),
    "E3": (lambda u, p, t: u.at[1].add(50.0), BOTH),
    "E4": (lambda u, p, t: u.at[1].multiply(-p[1]), BOTH),
    "E5": (lambda u, p, t: u.at[1].multiply(-p[1]), NEITHER),
    "E6": (lambda u, p, t: jnp.stack([u[0], u[1] ** 2]), BOTH),
    "E7": (lambda u, p, t: jnp.stack([u[0] + 3.0, u[1] ** 2]), BOTH),
}


#: the same affects as numbers (a, b, c, d, e):  x <- x + a,  v <- b v - c p[1] v + d v^2 + e
COEFFICIENTS = {
    "E1": (0.0, 1.0, 0.0, 0.0, 0.0),
    "E2": (0.0, 1.0, 0.0, 0.0, 0.0),
    "E3": (0.0, 1.0, 0.0, 0.0, 50.0),
    "E4": (0.0, 0.0, 1.0, 0.0, 0.0),
    "E5": (0.0, 0.0, 1.0, 0.0, 0.0),
    "E6": (0.0, 0.0, 0.0, 1.0, 0.0),
    "E7": (3.0, 0.0, 0.0, 1.0, 0.0),
}


def height(u, p, t):
    return u[0]


def polynomial(coefficients):
    """An affect whose numbers are captured arrays, so that one compiled solve serves all of `COEFFICIENTS`."""
    held = jnp.array(coefficients)

    def affect(u, p, t):
        a, b, c, d, e = held
        x, v = u
        return jnp.stack([x + a, b * v - c * p[1] * v + d * v**2 + e])

    return affect


def _impact(name: str, by_numbers: bool = False) -> Case:
    affect, save = AFFECTS[name]

    def callback(p):
        here = polynomial(COEFFICIENTS[name]) if by_numbers else affect
        return hx.ContinuousCallback(height, here, save_positions=save)

    rows = GOLD_CASES[name]["rows"]
    return Case(name, BALL, SUM_AND_MSE, golds(name, "sum", "mse"), rows, callback, {"saveat": 0.5})


E = {name: _impact(name) for name in AFFECTS}
E_BY_NUMBERS = {name: _impact(name, by_numbers=True) for name in AFFECTS}


def last_time(sol):
    return sol.ts[jnp.sum(sol.valid) - 1]


def _stop_at_impact() -> Case:
    def callback(p):
        return hx.ContinuousCallback(height, lambda u, p, t: u, terminate=True, save_positions=(True, False))

    losses = {"velocity": lambda sol, p: end(sol)[1], "time": lambda sol, p: last_time(sol)}
    return Case("E8", BALL, losses, golds("E8", "velocity", "time"), 2, callback)


E8 = _stop_at_impact()


# ------------------------------------------------------------------ W1: a vector condition
def _w1() -> Case:
    def rhs(u, p, t):
        return jnp.stack([u[1], -p[0], u[3], 0.0 * u[3]])

    def bounce(u, p, t, i):
        return jnp.where(i == 0, u.at[1].multiply(-p[1]), u.at[3].multiply(-p[1]))

    def callback(p):
        return hx.ContinuousCallback(lambda u, p, t: jnp.stack([u[0], (u[2] - 10.0) * u[2]]), bounce)

    problem = hx.ODEProblem(rhs, jnp.array([50.0, 0.0, 0.0, 2.01]), (0.0, 10.0), jnp.array([9.8, 0.9]))
    losses = {"mse": squared_distance(1.0)}
    return Case("W1", problem, losses, golds("W1", "mse"), 27, callback, {"saveat": 0.5})


W1 = _w1()
W1_EVENTS = GOLD_CASES["W1"]["gold"]["events"]


# ------------------------------------------------------------------ the oracle of a bouncing ball
def _bouncing_ball() -> Case:
    data = GOLD_ORACLES["bouncing_ball"]
    problem = hx.ODEProblem(fall, jnp.array(data["u0"]), tuple(data["tspan"]), jnp.array(data["p"]))

    def loss(sol, p):
        us = jnp.where(sol.valid[:, None], sol.us, 0.0)
        return jnp.sum(us[:, 0] ** 2 + 0.1 * us[:, 1])

    def callback(p):
        return hx.ContinuousCallback(height, None, lambda u, p, t: u.at[1].multiply(-p[1]), save_positions=NEITHER)

    saves = {"saveat": np.array(data["saveat"])}
    return Case("bouncing_ball", problem, {"sum": loss}, {"sum": gold_from(data)}, 12, callback, saves)


BOUNCING_BALL = _bouncing_ball()
BOUNCES = np.array(GOLD_ORACLES["bouncing_ball"]["event_times"])

# ------------------------------------------------------------------ M1: a running cost with a parameter in it
M1 = Case(
    "M1",
    LOTKA,
    {"cost": lambda sol, p: sol.cost},
    golds("M1", "cost"),
    2,
    options={"running_cost": lambda u, p, t: u[0] ** 2 + p[0]},
)


# ------------------------------------------------------------------ H3: a callback after every accepted step
def _h3() -> Training:
    times = 0.1 * np.arange(101)
    truth = np.stack([2 * np.exp(-times), np.zeros(101)], 1)

    def affect(u, p, t, tprev):
        nudge = 2 * jnp.exp(-jnp.round(t) / 10)
        return u.at[0].add(0.001 * nudge * (t - tprev))

    def callback(p):
        return hx.DiscreteCallback(lambda u, p, t: t > 0, affect, save_positions=NEITHER)

    def loss(sol, p):
        return jnp.sum((truth.astype(sol.us.dtype) - sol.us) ** 2)

    problem = hx.ODEProblem(lambda u, p, t: mlp(p, u), jnp.array([2.0, 0.0]), (0.0, 10.0), wave_mlp([2, 50, 2]))
    options = {"saveat": 0.1, "max_events": 512, "max_steps": 512}
    case = Case("H3", problem, {"before": loss}, {}, 101, callback, options)
    return Training(case, optax.adam(0.01), 1000, 0.5)


H3 = _h3()
__all__ = ["BALL", "BOUNCES", "BOUNCING_BALL", "E8", "E_BY_NUMBERS", "H3", "M1", "W1", "W1_EVENTS", "E", "last_time", "total"]
