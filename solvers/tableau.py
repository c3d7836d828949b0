"""Explicit Runge-Kutta methods as data.

A method with ``s`` stages is written in first-same-as-last (FSAL) form: row ``s`` of ``a`` holds the
weights of the step itself, so that stage ``s`` is the right-hand side at the end of the step, and
serves as stage 0 of the next one:

    k_i = f(t + c_i h, u + h sum_j a_ij k_j),  i = 0..s,      u1 = u + h sum_j a_sj k_j.

The error estimate is ``h sum_i e_i k_i``; the continuous extension at ``t + theta h`` is
``u + h sum_i b_i(theta) k_i`` with polynomials ``b_i(theta) = sum_d dense[i, d] theta^(d+1)``.
One step therefore costs ``s`` evaluations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Tableau:
    """Coefficients of one explicit method; shapes ``c (s+1,)``, ``a (s+1, s+1)``, ``e (s+1,)``, ``dense (s+1, d)``."""

    name: str
    order: int
    c: np.ndarray
    a: np.ndarray
    e: np.ndarray | None
    dense: np.ndarray

    @property
    def stages(self) -> int:
        """Right-hand-side evaluations per step (``s``)."""
        return len(self.c) - 1

    @property
    def b(self) -> np.ndarray:
        """Weights of the step, shape ``(s,)``."""
        return self.a[-1, :-1]

    def dense_weights(self, theta):
        """``b_i(theta)``, shape ``theta.shape + (s+1,)``, at fractions ``theta`` of the step."""
        return _horner(self.dense, theta) * theta[..., None]

    def dense_slopes(self, theta):
        """Derivatives ``b_i'(theta)``, shape ``theta.shape + (s+1,)``."""
        return _horner(self.dense * np.arange(1, self.dense.shape[1] + 1), theta)


def _horner(coefficients: np.ndarray, theta):
    """Polynomials, one for each row of ``coefficients``, at ``theta``; a new last axis runs over the rows."""
    shape = (1,) * theta.ndim + (-1,)
    columns = [c.reshape(shape) for c in coefficients.astype(np.dtype(theta.dtype)).T]
    theta = theta[..., None]
    total = columns[-1] + np.zeros((), theta.dtype) * theta
    for column in columns[-2::-1]:
        total = total * theta + column
    return total
