"""Training cases H1, H2 and H4: a network inside a hybrid system, its loss before training, and how it is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

import hybridax as hx

from .case import GOLD_CASES, Case, golds
from .known_events import NEITHER
from .networks import mlp, wave_mlp, zero_mlp
from .oracles import hybrid_rhs, sampled_every_tenth


@dataclass(frozen=True, eq=False)
class Training:
    """A case, the optimizer and the number of its steps, and the loss that must be reached."""

    case: Case
    optimizer: Any
    steps: int
    below: float


# ------------------------------------------------------------------ H1: a hundred kicks
def _h1() -> Training:
    def rhs(u, p, t):
        return mlp(p, u, activation=lambda x: x)

    def kick(u, p, t):
        return u.at[0].add(0.2 * (0.5 + 0.5 * jnp.sin(1.7 * t)))

    def callback(p):
        return hx.PresetTimeCallback(np.arange(1.0, 101.0), kick)

    target = 3 * np.arange(1, 101) / 100

    def loss(sol, p):
        left_limits = sol.us[1::2][:100, 0]
        return jnp.mean((target - left_limits) ** 2)

    problem = hx.ODEProblem(rhs, jnp.array([0.0, 1.0]), (0.0, 100.0), zero_mlp([2, 10, 2]))
    case = Case("H1", problem, {"before": loss}, golds("H1", "before"), 201, callback, {"saveat": 2.0})
    return Training(case, optax.adam(0.005), 200, 0.5)


# ------------------------------------------------------------------ H2: the network only sees the sampled state
def _h2() -> Training:
    truth = np.array(GOLD_CASES["H2"]["gold"]["data"])

    def loss(sol, p):
        return jnp.sum((truth.astype(sol.us.dtype) - sol.us[:, :2]) ** 2)

    problem = hx.ODEProblem(hybrid_rhs, jnp.array([2.0, 0.0, 0.0, 0.0]), (0.0, 1.0), wave_mlp([4, 50, 2]))
    case = Case("H2", problem, {"before": loss}, golds("H2", "before"), 21, sampled_every_tenth)
    return Training(case, optax.adam(0.0025), 200, 0.5)


# ------------------------------------------------------------------ H4: learn the dose that is copied in
def _h4() -> Training:
    times, doses = 10.5 * np.arange(100) / 99, np.array([1.0, 2.0, 4.0, 8.0])
    # closed form of u' = -u with unit doses; a save on a dose would be its left limit (there is none)
    decay = lambda since: np.where(since > 0, np.exp(-np.maximum(since, 0)), 0.0)
    dosed = decay(times[:, None] - doses).sum(1)
    truth = np.stack([2 * np.exp(-times) + dosed, dosed], 1)

    def rhs(u, p, t):
        return jnp.concatenate([-u[:2], mlp(p, u[:2])])

    def copy(u, p, t):
        return jnp.concatenate([u[2:], u[2:]])

    def callback(p):
        return hx.PresetTimeCallback(doses, copy, save_positions=NEITHER)

    def loss(sol, p):
        return jnp.sum((truth - sol.us[:, :2]) ** 2)

    problem = hx.ODEProblem(rhs, jnp.array([2.0, 0.0, 0.0, 0.0]), (0.0, 10.5), wave_mlp([2, 50, 2]))
    case = Case("H4", problem, {"before": loss}, golds("H4", "before"), 100, callback, {"saveat": times})
    return Training(case, optax.adam(optax.cosine_decay_schedule(0.05, 300)), 300, 1.0)


H1, H2, H4 = _h1(), _h2(), _h4()
TRAINING = {"H1": H1, "H2": H2, "H4": H4}
