"""Losses and gradients of a case by one method, compiled once and asked many times."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from methods import METHODS

from .case import Case, flat


class Evaluation(NamedTuple):
    loss: float
    grad_u0: np.ndarray
    grad_p: np.ndarray
    rows: int


@functools.lru_cache(maxsize=None)
def compiled(case: Case, method: str):
    """``(u0, p, weights, tolerance) -> ((weighted loss, (losses, rows)), (grad u0, grad p))``, jitted.

    Which loss is differentiated is data, so that one program serves all losses of a case.
    """

    def value(u0, p, weights, tolerance):
        sol = case.solve(u0, p, sensealg=METHODS[method], rtol=tolerance, atol=tolerance)
        losses = jnp.stack([loss(sol, p) for loss in case.losses.values()])
        return jnp.sum(weights * losses), (losses, jnp.sum(sol.valid))

    return jax.jit(jax.value_and_grad(value, (0, 1), has_aux=True, allow_int=True))


def evaluate(
    case: Case, method: str, loss: str | None = None, tolerance: float | None = None, u0: Any = None
) -> Evaluation:
    """Loss and gradients of ``case`` by ``method``; ``loss`` names one of its losses, the first by default."""
    names = list(case.losses)
    index = 0 if loss is None else names.index(loss)
    weights = np.eye(len(names))[index]
    tolerance = case.tolerance if tolerance is None else tolerance
    u0 = case.problem.u0 if u0 is None else u0
    (_, (losses, rows)), (grad_u0, grad_p) = compiled(case, method)(u0, case.problem.p, weights, tolerance)
    return Evaluation(float(losses[index]), flat(grad_u0), flat(grad_p), int(rows))


def forget() -> None:
    compiled.cache_clear()
