"""One problem with a known answer: what to solve, what to minimise, and the gradient that must come out."""

from __future__ import annotations

import json
import pathlib
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

import hybridax as hx

DATA = pathlib.Path(__file__).parent.parent / "oracles"
GOLD_CASES = json.loads((DATA / "cases.json").read_text())
GOLD_ORACLES = json.loads((DATA / "oracles.json").read_text())
TIGHT = 1e-10


@dataclass(frozen=True)
class Gold:
    """Loss and gradients to come; a gradient is the ravelled float leaves in order, None where it is not known."""

    loss: float
    grad_u0: np.ndarray | None = None
    grad_p: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Case:
    """A problem, what is saved (``options``), the number of valid ``rows``, losses of ``(sol, p)`` and their gold.

    ``callback`` is a function of p, so that times inside it can be learned. ``tolerance`` is rtol and atol.
    """

    name: str
    problem: hx.ODEProblem
    losses: Mapping[str, Callable[[Any, Any], Any]]
    gold: Mapping[str, Gold]
    rows: int
    callback: Callable[[Any], Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float = TIGHT

    def solve(self, u0=None, p=None, **changes):
        u0 = self.problem.u0 if u0 is None else u0
        p = self.problem.p if p is None else p
        options = {"rtol": self.tolerance, "atol": self.tolerance, **self.options}
        if self.callback is not None:
            options["callback"] = self.callback(p)
        return hx.solve(self.problem, u0=u0, p=p, **{**options, **changes})

    def __repr__(self) -> str:
        return self.name


def gold_of(case: str, name: str) -> Gold:
    """The gold entry ``name`` of a case in cases.json."""
    return gold_from(GOLD_CASES[case]["gold"][name])


def gold_from(entry: Mapping[str, Any]) -> Gold:
    get = lambda key: None if entry.get(key) is None else np.ravel(np.asarray(entry[key]))
    return Gold(entry["loss"], get("grad_u0"), get("grad_p"))


def golds(case: str, *names: str) -> dict[str, Gold]:
    return {name: gold_of(case, name) for name in names}


def filled(sol, value: float):
    """The rows, with padding replaced by ``value`` before anything nonlinear is done to it."""
    return jnp.where(sol.valid[:, None], sol.us, jnp.asarray(value, sol.us.dtype))


def total(sol, p):
    """Sum over valid rows and components."""
    return jnp.sum(filled(sol, 0.0))


def squared_distance(target: float) -> Callable:
    """Half the sum of squared distances from ``target``."""
    return lambda sol, p: jnp.sum((filled(sol, target) - target) ** 2) / 2


def end(sol):
    """The last valid row."""
    last = jnp.sum(sol.valid) - 1
    return jax.tree.map(lambda x: x[last], sol.us)


def flat(tree) -> np.ndarray:
    """The inexact leaves of a tree, ravelled and laid end to end."""
    leaves = [np.ravel(np.asarray(x)) for x in jax.tree.leaves(tree) if jax.dtypes.result_type(x) != jax.dtypes.float0]
    leaves = [x for x in leaves if x.dtype.kind in "fc"]
    return np.concatenate(leaves) if leaves else np.zeros(0)


def relative_error(got, expected) -> float:
    """Largest absolute difference over the largest absolute entry of ``expected``."""
    got, expected = flat(got), flat(expected)
    assert got.shape == expected.shape, (got.shape, expected.shape)
    scale = np.max(np.abs(expected))
    return float(np.max(np.abs(got - expected)) / (scale if scale > 0 else 1.0))
