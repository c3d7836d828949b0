"""QuadratureAdjoint: lam alone is solved backwards; the parameters' integral is a quadrature of its own.

    mu = int (df/dp)' lam dt

over each segment, by adaptive Gauss-Kronrod on the dense costate and the dense state. Intervals start as the steps of the
costate; those whose error estimate is too large are halved. The nodes of several intervals are one batched VJP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..solvers.buffers import set_row, take
from ..solvers.runge_kutta import Step, interpolate
from .costate import CostateAux, CostateWalk, ParameterIntegral, solve_costate
from .gauss_kronrod import gauss_kronrod
from .norms import mu_error
from .reverse import Mu, Reverse
from .sensealg import ContinuousAdjoint, Costate
from .tolerances import reverse_tolerances

ROWS = 64  # costate steps kept before their integral is taken
MAX_HALVINGS = 20


class CostateRows(NamedTuple):
    """Costate steps whose integral is still to be taken; lanes at axis 1."""

    used: Array  # ()
    t: Array  # (Q, B)
    h: Array  # (Q, B)
    lam: Array  # (Q, B, n)
    k: Array  # (Q, B, s+1, n)
    failed: Array  # (B,)


class Worklist(NamedTuple):
    """A stack of intervals for each lane: fractions of costate rows."""

    top: Array  # (B,)
    row: Array  # (C, B)
    low: Array  # (C, B), fraction of the row where the interval starts
    width: Array  # (C, B)


@dataclass(frozen=True)
class SegmentQuadrature(ParameterIntegral):
    """Adaptive Gauss-Kronrod over the costate's steps."""

    order: int
    rtol: Array
    atol: Array

    def initial(self, walk: CostateWalk) -> CostateRows:
        r = walk.reverse
        real, dtype = self.rtol.dtype, r.system.dtype
        stages, lanes, n = r.tableau.stages + 1, r.lanes, walk.n
        times = jnp.zeros((ROWS, lanes), real)
        return CostateRows(
            jnp.zeros((), np.int32),
            times,
            times,
            jnp.zeros((ROWS, lanes, n), dtype),
            jnp.zeros((ROWS, lanes, stages, n), dtype),
            jnp.zeros(lanes, bool),
        )

    def add(self, walk: CostateWalk, aux: CostateAux, step: Step, accepted, due, extra: Any) -> CostateAux:
        if not walk.reverse.diff:
            return aux
        rows: CostateRows = aux.integral
        h = jnp.where(accepted, step.h, 0.0)
        k = jnp.where(accepted[:, None, None], step.k, 0)
        i = rows.used
        rows = rows._replace(
            used=i + jnp.any(accepted).astype(np.int32),
            t=set_row(rows.t, i, step.t),
            h=set_row(rows.h, i, h),
            lam=set_row(rows.lam, i, step.u),
            k=set_row(rows.k, i, k),
        )
        aux = aux._replace(integral=rows)
        full = (rows.used == ROWS) | jnp.any(due)
        return lax.cond(full, lambda a: self._settle(walk, a), lambda a: a, aux)

    def _settle(self, walk: CostateWalk, aux: CostateAux) -> CostateAux:
        """Integrate over all rows, and empty them."""
        r = walk.reverse
        rows: CostateRows = aux.integral
        batch = 8
        capacity = ROWS + batch * (MAX_HALVINGS + 1)
        lanes = r.lanes
        index = jnp.arange(ROWS, dtype=np.int32)[:, None]
        live = (index < rows.used) & (rows.h != 0)
        # rows with a step first, in order, for each lane
        packed = jnp.argsort(jnp.where(live, index, index + ROWS), axis=0).astype(np.int32)
        pad = ((0, capacity - ROWS), (0, 0))
        real = rows.t.dtype
        work = Worklist(
            jnp.sum(live, 0).astype(np.int32),
            jnp.pad(packed, pad),
            jnp.zeros((capacity, lanes), real),
            jnp.ones((capacity, lanes), real),
        )

        def body(carry):
            work, mu, failed = carry
            return self._integrate_some(walk, aux, rows, work, mu, failed, batch)

        _, mu, failed = lax.while_loop(
            lambda c: jnp.any(c[0].top > 0), body, (work, aux.mu, rows.failed)
        )
        rows = rows._replace(used=jnp.zeros_like(rows.used), failed=failed)
        return aux._replace(mu=mu, integral=rows, bad=aux.bad | failed)

    def _integrate_some(self, walk, aux, rows: CostateRows, work: Worklist, mu: Mu, failed, batch: int):
        """Take up to ``batch`` intervals off each lane's stack; accept them, or put their halves back."""
        r = walk.reverse
        nodes, kronrod, gauss = (x.astype(rows.t.dtype) for x in gauss_kronrod(self.order))
        slot = work.top[None] - 1 - jnp.arange(batch, dtype=np.int32)[:, None]
        on = slot >= 0
        at = lambda x: jax.vmap(lambda i: take(x, i))(jnp.maximum(slot, 0))  # noqa: E731
        row, low, width = at(work.row), at(work.low), at(work.width)
        fetch = lambda x: jax.vmap(lambda i: take(x, i))(row)  # noqa: E731
        t, h, lam, k = fetch(rows.t), fetch(rows.h), fetch(rows.lam), fetch(rows.k)
        h = jnp.where(on, h, 0.0)
        theta = low + nodes[:, None, None] * width  # (X, W, B)
        times = t + theta * h
        lams = interpolate(r.tableau, lam[None], h[None], k[None], theta)
        states = jax.vmap(jax.vmap(lambda s: walk.dense(s, aux.segment)))(times)
        # d mu = -(df/dp)' lam dt, and the walk goes backwards: h is negative in the direction of integration
        scale = -(h * width)[None]

        def share(weights):
            return (weights[:, None, None] * scale)[..., None] * lams

        def one(total, error, u, s):
            return r.pull_params_each((total, error), u, s, aux.p)

        totals, errors = jax.vmap(one, (1, 1, 1, 1))(
            share(kronrod), share(kronrod - gauss), states, times
        )
        size = jax.tree.map(lambda a, b: jnp.abs(a) + jnp.max(jnp.abs(b), 0), mu, totals)
        scaled = jax.vmap(lambda e: mu_error(r, e, size, self.rtol, self.atol))(errors)  # (W, B)
        scaled = jnp.where(on, scaled, 0.0)
        exhausted = width <= 2.0**-MAX_HALVINGS
        fine = (scaled <= 1) | exhausted
        if r.lanes > 1 and any(a is None for a in r.axes):
            # one sum over all lanes has one error: its intervals stand or fall together
            fine = jnp.broadcast_to(jnp.all(fine, 1, keepdims=True), fine.shape)
        failed = failed | jnp.any(on & (((scaled > 1) & exhausted) | ~jnp.isfinite(scaled)), 0)
        fine = fine | ~jnp.isfinite(scaled)
        mu = self._accept(r, mu, totals, fine)
        top = jnp.maximum(work.top - batch, 0)
        again = on & ~fine
        # halves of rejected intervals go back on the stack, side by side
        place = top + 2 * (jnp.cumsum(again, 0, dtype=np.int32) - again)
        work = Worklist(
            top + 2 * jnp.sum(again, 0, dtype=np.int32),
            *(
                self._push(buffer, place, jnp.stack([first, second], 1), again)
                for buffer, first, second in (
                    (work.row, row, row),
                    (work.low, low, low + 0.5 * width),
                    (work.width, 0.5 * width, 0.5 * width),
                )
            ),
        )
        return work, mu, failed

    @staticmethod
    def _push(buffer: Array, place: Array, pair: Array, on: Array) -> Array:
        """Write ``pair (W, 2, B)`` at rows ``place (W, B)`` and the next ones."""
        capacity, lanes = buffer.shape
        rows = jnp.stack([place, place + 1], 1)
        rows = jnp.where(on[:, None], rows, capacity)
        return buffer.at[rows, jnp.arange(lanes, dtype=np.int32)].set(pair, mode="drop")

    @staticmethod
    def _accept(r: Reverse, mu: Mu, totals: Mu, fine: Array) -> Mu:
        def leaf(x, total, axis):
            keep = fine[:, 0] if axis is None else fine
            keep = keep.reshape(keep.shape + (1,) * (total.ndim - keep.ndim))
            return x + jnp.sum(jnp.where(keep, total, 0), 0)

        leaves = tuple(map(leaf, mu.leaves, totals.leaves, r.axes))
        return Mu(leaves, None if mu.packed is None else leaf(mu.packed, totals.packed, 0))


@dataclass(frozen=True)
class QuadratureAdjoint(ContinuousAdjoint):
    """Reverse state lam alone; memory: the dense forward solve and a window of the dense costate.

    The parameter integral has its own error control, at ``rtol, atol`` of the reverse solve. ``order``: Gauss points of
    the rule (Kronrod extension: 2 order + 1 nodes on each interval).

    Cost: one state VJP for each reverse stage, and a batched parameter VJP over the nodes. Source: Kim et al.,
    arXiv:2103.15341, and Rackauckas et al., arXiv:2001.04385.
    """

    order: int = 3

    records_slopes = True

    def reverse(self, problem: Reverse) -> Costate:
        rtol, atol = reverse_tolerances(problem, self)
        walk = CostateWalk(problem, SegmentQuadrature(self.order, rtol, atol))
        return solve_costate(problem, self, walk)
