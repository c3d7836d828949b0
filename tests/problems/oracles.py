"""The oracles: Lotka-Volterra, a hybrid neural ODE, learned dosing, a kicked oscillator."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import hybridax as hx

from .case import GOLD_ORACLES, Case, gold_from, total
from .networks import mlp, wave_mlp

NEITHER = (False, False)


def lotka(u, p, t):
    x, y = u
    a, b, c, d = p
    return jnp.stack([a * x - b * x * y, -c * y + d * x * y])


def _lotka_volterra() -> Case:
    data = GOLD_ORACLES["lotka_volterra"]
    problem = hx.ODEProblem(lotka, jnp.array(data["u0"]), tuple(data["tspan"]), jnp.array(data["p"]))
    saves = np.array(data["saveat"])
    return Case("lotka_volterra", problem, {"sum": total}, {"sum": gold_from(data)}, 101, options={"saveat": saves})


def hybrid_rhs(u, p, t):
    return jnp.concatenate([mlp(p, u), jnp.zeros(2, u.dtype)])


def sample_state(u, p, t):
    """(u3, u4) <- -3 (u1, u2)"""
    return jnp.concatenate([u[:2], -3 * u[:2]])


def sampled_every_tenth(p):
    return hx.PeriodicCallback(sample_state, 0.1, initial_affect=True)


def _hybrid_node() -> Case:
    data = GOLD_ORACLES["hybrid_node"]
    truth = np.array(data["data"])
    problem = hx.ODEProblem(hybrid_rhs, jnp.array(data["u0"]), (0.0, 1.0), wave_mlp(data["sizes"]))

    def loss(sol, p):
        return jnp.sum((truth - sol.us[:, :2]) ** 2)

    return Case("hybrid_node", problem, {"sum": loss}, {"sum": gold_from(data)}, 21, sampled_every_tenth)


class Dosing(NamedTuple):
    """ka and ke, doses, and the times at which they are given."""

    rates: jnp.ndarray
    doses: jnp.ndarray
    times: jnp.ndarray


def _absorption(u, p, t):
    ka, ke = p.rates
    return jnp.stack([-ka * u[0], ka * u[0] - ke * u[1]])


def _blood_level(sol, p):
    blood = jnp.where(sol.valid, sol.us[:, 1], 1.0)
    return jnp.sum((blood - 1) ** 2)


def _doses(p):
    """One callback for each dose."""

    def dose(k):
        return hx.PresetTimeCallback(p.times[k : k + 1], lambda u, p, t: u.at[0].add(p.doses[k]), save_positions=NEITHER)

    return hx.CallbackSet(*(dose(k) for k in range(3)))


def _counted_doses(p):
    """One callback for all doses; a third component of the state counts them."""

    def dose(u, p, t):
        return u + jnp.stack([p.doses[jnp.round(u[2]).astype(int)], jnp.zeros(()), jnp.ones(())])

    return hx.PresetTimeCallback(p.times, dose, save_positions=NEITHER)


def _dosing_parameters() -> Dosing:
    p = GOLD_ORACLES["dosing"]["p"]
    return Dosing(jnp.array(p[:2]), jnp.array(p[2:5]), jnp.array(p[5:]))


def _dosing() -> Case:
    data = GOLD_ORACLES["dosing"]
    problem = hx.ODEProblem(_absorption, jnp.zeros(2), (0.0, 24.0), _dosing_parameters())
    saves = {"saveat": np.array(data["saveat"])}
    return Case("dosing", problem, {"sum": _blood_level}, {"sum": gold_from(data)}, 24, _doses, saves)


def _dosing_by_counter() -> Case:
    data = GOLD_ORACLES["dosing"]

    def rhs(u, p, t):
        return jnp.append(_absorption(u, p, t), 0.0)

    problem = hx.ODEProblem(rhs, jnp.zeros(3), (0.0, 24.0), _dosing_parameters())
    saves = {"saveat": np.array(data["saveat"])}
    return Case("dosing_by_counter", problem, {"sum": _blood_level}, {"sum": gold_from(data)}, 24, _counted_doses, saves)


def _oscillator(u, p, t):
    w, c, _, _ = p
    return jnp.stack([u[1], -w * w * u[0] - c * u[1]])


def _kick(u, p, t):
    return jnp.stack([u[0], p[2] * u[1] + p[3] * jnp.sin(t)])


def _kicked_oscillator() -> Case:
    data = GOLD_ORACLES["kicked_oscillator"]
    problem = hx.ODEProblem(_oscillator, jnp.array(data["u0"]), tuple(data["tspan"]), jnp.array(data["p"]))

    def loss(sol, p):
        x, v = sol.us.T
        return jnp.sum(x**2 + x * v)

    def callback(p):
        return hx.PeriodicCallback(_kick, 0.7, save_positions=NEITHER)

    saves = {"saveat": np.array(data["saveat"])}
    return Case("kicked_oscillator", problem, {"sum": loss}, {"sum": gold_from(data)}, 21, callback, saves)


ORACLES = {
    case.name: case for case in (_lotka_volterra(), _hybrid_node(), _dosing(), _dosing_by_counter(), _kicked_oscillator())
}
