"""Losses and gradients of a case by one method.

Called outside jit, so that cases that differ in numbers alone share the program that solve keeps of their structure.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from methods import ALL

from .case import Case, flat


class Evaluation(NamedTuple):
    loss: float
    grad_u0: np.ndarray
    grad_p: np.ndarray
    rows: int


@functools.lru_cache(maxsize=None)
def compiled(loss):
    """``(sol, p) -> (loss, rows)``: one small program in place of one for each of its operations."""
    return jax.jit(lambda sol, p: (loss(sol, p), jnp.sum(sol.valid)))


def gradients(case: Case, method: str, loss: str | None = None, tolerance: float | None = None):
    """``((loss, rows), (gradient of u0, gradient of p))``; ``loss`` names one of the case's, the first by default."""
    function = next(iter(case.losses.values())) if loss is None else case.losses[loss]
    tolerance = case.tolerance if tolerance is None else tolerance

    def value(u0, p):
        return compiled(function)(case.solve(u0, p, sensealg=ALL[method], rtol=tolerance, atol=tolerance), p)

    return jax.value_and_grad(value, (0, 1), has_aux=True, allow_int=True)(case.problem.u0, case.problem.p)


def evaluate(case: Case, method: str, loss: str | None = None, tolerance: Any = None) -> Evaluation:
    """`gradients` as NumPy arrays, the float leaves of each laid end to end."""
    (value, rows), (grad_u0, grad_p) = gradients(case, method, loss, tolerance)
    return Evaluation(float(value), flat(grad_u0), flat(grad_p), int(rows))
