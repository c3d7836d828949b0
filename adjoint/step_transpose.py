"""The transpose of one Runge-Kutta step.

A step (t, h, u) with stage states U_i and slopes k_i = f(U_i) is a composition of right-hand-side evaluations and linear
combinations; its transpose runs the stages backwards. With w_i = J(U_i)' v_i,

    v_i = kbar_i + h a_si s + sum_{q > i} h a_qi w_q,      ubar = s + sum_i w_i,

where s is the cotangent of the end of the step, and kbar_i and ubar collect the cotangents of saved rows inside the step,
which enter through its continuous extension. A step that an event cuts short ends on its continuous extension too.
"""

from __future__ import annotations

from typing import Callable, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..solvers.tableau import Tableau


class RowBars(NamedTuple):
    """Steps and the cotangents inside them."""

    h: Array  # (...)
    theta: Array | None  # (...), where the step was cut
    ubar: Array  # (..., n), of the state at the start
    kbar: Array  # (..., s+1, n), of the slopes


def transpose_row(
    tableau: Tableau, pull: Callable, rows: RowBars, lam: Array, first: int
) -> tuple[Array, list[Array]]:
    """From the cotangent ``lam (..., n)`` of the end to that of the start, and the cotangents ``v`` of all slopes.

    ``pull(q, v)`` is ``J(U_q)' v``. Slopes before ``first`` are not pulled back.
    """
    s, h = tableau.stages, rows.h[..., None]
    kbar, total = rows.kbar, rows.ubar
    if rows.theta is not None:
        cut = (rows.theta < 1)[..., None]
        weights = h * tableau.dense_weights(rows.theta)
        kbar = kbar + jnp.where(cut[..., None], weights[..., None] * lam[..., None, :], 0)
        total = total + jnp.where(cut, lam, 0)
        lam = jnp.where(cut, jnp.zeros_like(lam), lam)
    v = [kbar[..., q, :] for q in range(s + 1)]
    w: dict[int, Array] = {}
    for q in range(s, -1, -1):
        for later in range(q + 1, s + 1):
            if tableau.a[later, q] != 0:
                v[q] = v[q] + h * np.asarray(tableau.a[later, q], h.dtype) * w[later]
        if q >= first:
            w[q] = pull(q, v[q])
            if q == s:
                w[q] = w[q] + lam
            total = total + w[q]
    return total, v
