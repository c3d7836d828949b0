"""Steps of lam whose parameter integral is still to be taken, and the points where a rule takes it.

Two rules: the stages of the Runge-Kutta method that integrates lam, with its own weights and its own embedded error
(mu then is what it would be as a part of the reverse state); and Gauss-Kronrod nodes on its continuous extension.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..solvers.buffers import set_row
from ..solvers.runge_kutta import Step, interpolate
from .costate import CostateAux, CostateWalk
from .gauss_kronrod import gauss_kronrod


class LamRows(NamedTuple):
    """``y`` is lam, or [lam, u] where the state is solved too."""

    used: Array  # (), how many
    t: Array  # (Q, B)
    h: Array  # (Q, B), 0 where not accepted
    y: Array  # (Q, B, m)
    k: Array  # (Q, B, s+1, m)
    segment: Array  # (Q, B)
    row: Array  # (Q, B), row of the record at or after the start
    stages: Array | None  # (Q, B, s+1, n), the forward state at the stages, where a rule takes it from there

    @staticmethod
    def empty(walk: CostateWalk, count: int, real: np.dtype, stages: bool) -> LamRows:
        r = walk.reverse
        dtype, lanes, s = r.system.dtype, r.lanes, r.tableau.stages + 1
        m = 2 * walk.n if walk.solves_state else walk.n
        times, index = jnp.zeros((count, lanes), real), jnp.zeros((count, lanes), np.int32)
        return LamRows(
            jnp.zeros((), np.int32),
            times,
            times,
            jnp.zeros((count, lanes, m), dtype),
            jnp.zeros((count, lanes, s, m), dtype),
            index,
            index,
            jnp.zeros((count, lanes, s, walk.n), dtype) if stages and walk.dense is not None else None,
        )

    @staticmethod
    def of_step(aux: CostateAux, step: Step, accepted: Array, stages: bool) -> LamRows:
        """A step as the only row."""
        row = LamRows(
            jnp.any(accepted).astype(np.int32),
            step.t,
            jnp.where(accepted, step.h, 0.0),
            step.u,
            step.k,
            aux.segment,
            aux.row,
            jnp.moveaxis(step.ahead.u, 0, 1) if stages and step.ahead is not None else None,
        )
        return row._replace(**{f: x[None] for f, x in row._asdict().items() if f != "used" and x is not None})

    def put(self, aux: CostateAux, step: Step, accepted: Array) -> LamRows:
        """With a step as the next row; it is overwritten where it was not accepted."""
        row = LamRows.of_step(aux, step, accepted, self.stages is not None)
        moved = accepted[None, :, None]
        row = row._replace(y=jnp.where(moved, row.y, 0), k=jnp.where(moved[..., None], row.k, 0))
        filled = jax.tree.map(lambda x, new: set_row(x, self.used, new[0]) if x.ndim else x + new, self, row)
        return LamRows(*filled)


class Points(NamedTuple):
    """Points of steps, and the weights of the rule and of its error in units of their lengths."""

    t: Array  # (Q, X, B)
    lam: Array  # (Q, X, B, n)
    u: Array  # (Q, X, B, n)
    weights: Array  # (X,)
    errors: Array  # (X,)


def points_of(walk: CostateWalk, rows: LamRows, nodes: int | None) -> Points:
    """Those of a Gauss-Kronrod rule with ``nodes`` Gauss points, or (None) the stages."""
    if nodes is not None:
        return nodes_of(walk, rows, jnp.zeros_like(rows.t), jnp.ones_like(rows.t), nodes)
    tableau, real = walk.reverse.tableau, rows.t.dtype
    c, b = jnp.asarray(tableau.c, real), np.append(tableau.b, 0.0)
    t = rows.t[:, None] + c[:, None] * rows.h[:, None]
    y = rows.y[:, None] + rows.h[:, None, :, None] * jnp.einsum("ij,qbjm->qibm", jnp.asarray(tableau.a, real), rows.k)
    u = y[..., walk.n :] if rows.stages is None else jnp.moveaxis(rows.stages, 2, 1)
    weights, errors = (jnp.asarray(x, real) for x in (b, 0 * b if tableau.e is None else tableau.e))
    return Points(t, y[..., : walk.n], u, weights, errors)


def nodes_of(walk: CostateWalk, rows: LamRows, low: Array, width: Array, order: int) -> Points:
    """Those of a rule with ``order`` Gauss points on the fractions ``[low, low + width] (Q, B)`` of the rows."""
    r, real = walk.reverse, rows.t.dtype
    nodes, kronrod, gauss = (jnp.asarray(x, real) for x in gauss_kronrod(order))
    theta = low[:, None] + nodes[:, None] * width[:, None]
    t = rows.t[:, None] + theta * rows.h[:, None]
    y = interpolate(r.tableau, rows.y[:, None], rows.h[:, None], rows.k[:, None], theta)
    u = y[..., walk.n :] if walk.dense is None else walk.dense.many(t, rows.segment, rows.row)
    return Points(t, y[..., : walk.n], u, kronrod, kronrod - gauss)


def of_live_rows(walk: CostateWalk, rows: LamRows, p: Points) -> Points:
    """Points of empty rows put where the right-hand side is known to be finite, with no lam."""
    args, live = walk.reverse.args, (rows.h != 0)[:, None, :, None]
    t = jnp.where(live[..., 0], p.t, args.schedule.t0)
    return p._replace(t=t, lam=jnp.where(live, p.lam, 0), u=jnp.where(live, p.u, args.u0))
