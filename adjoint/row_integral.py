"""Parameter integrals over many steps of lam at once.

    mu = int (df/dp)' lam dt

The steps of lam are kept until there are `ROWS` of them; a rule of fixed points on every step, evaluated for all of them
as one batched VJP, gives their share of mu and an estimate of its error. Where the estimate is too large, the share is
taken again by adaptive quadrature (`worklist`). So the parameters are integrated to the tolerance, and never shorten a
step of lam.

Two rules: the stages of the Runge-Kutta method that integrates lam, with its own weights and its own embedded error
(mu then is what it would be as a part of the reverse state); and Gauss-Kronrod nodes on its continuous extension.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..solvers.buffers import set_row
from ..solvers.runge_kutta import Step
from .costate import CostateAux, CostateWalk
from .norms import mu_error
from .parameter_integral import ParameterIntegral
from .reverse import Mu, Reverse
from .worklist import Intervals, integrate_adaptively, node_values

ROWS = 32  # steps of lam kept before their integral is taken
POINTS = 2**16  # ... fewer where many lanes have as many points together


class Rows(NamedTuple):
    """Steps of lam whose integral is still to be taken; ``y`` is lam, or [lam, u] where the state is solved too."""

    used: Array  # ()
    t: Array  # (Q, B)
    h: Array  # (Q, B), 0 where not accepted
    y: Array  # (Q, B, m)
    k: Array  # (Q, B, s+1, m)
    segment: Array  # (Q, B)
    row: Array  # (Q, B), row of the record at or after the start
    stages: Array | None  # (Q, B, s+1, n), the forward state at the stages
    failed: Array  # (B,)


@dataclass(frozen=True)
class RowIntegral(ParameterIntegral):
    """``nodes``: the order of the Gauss rule, None for the stages of the steps."""

    rtol: Array
    atol: Array
    nodes: int | None = None

    def initial(self, walk: CostateWalk) -> Any:
        r = walk.reverse
        if not r.diff:
            return ()
        dtype, lanes, s = r.system.dtype, r.lanes, r.tableau.stages + 1
        q = int(np.clip(POINTS // (s * lanes), 4, ROWS))
        m = 2 * walk.n if walk.solves_state else walk.n
        times, index = jnp.zeros((q, lanes), self.rtol.dtype), jnp.zeros((q, lanes), np.int32)
        stages = jnp.zeros((q, lanes, s, walk.n), dtype) if self.nodes is None and walk.dense is not None else None
        return Rows(
            jnp.zeros((), np.int32),
            times,
            times,
            jnp.zeros((q, lanes, m), dtype),
            jnp.zeros((q, lanes, s, m), dtype),
            index,
            index,
            stages,
            jnp.zeros(lanes, bool),
        )

    def add(self, walk: CostateWalk, aux: CostateAux, step: Step, accepted, due, extra: Any) -> CostateAux:
        if not walk.reverse.diff:
            return aux
        rows: Rows = aux.integral
        i = rows.used
        stages = rows.stages
        if stages is not None and step.ahead is not None:
            stages = set_row(stages, i, jnp.moveaxis(step.ahead.u, 0, 1))
        rows = Rows(
            i + jnp.any(accepted).astype(np.int32),
            set_row(rows.t, i, step.t),
            set_row(rows.h, i, jnp.where(accepted, step.h, 0.0)),
            set_row(rows.y, i, jnp.where(accepted[:, None], step.u, 0)),
            set_row(rows.k, i, jnp.where(accepted[:, None, None], step.k, 0)),
            set_row(rows.segment, i, aux.segment),
            set_row(rows.row, i, aux.row),
            stages,
            rows.failed,
        )
        full = (rows.used == rows.t.shape[0]) | jnp.any(due)
        return lax.cond(full, lambda a: self.finish(walk, a), lambda a: a, aux._replace(integral=rows))

    def finish(self, walk: CostateWalk, aux: CostateAux) -> CostateAux:
        """Integrate over all rows, and empty them."""
        r = walk.reverse
        if not r.diff:
            return aux
        rows: Rows = aux.integral
        live = (jnp.arange(rows.h.shape[0], dtype=np.int32)[:, None] < rows.used) & (rows.h != 0)
        rows = rows._replace(h=jnp.where(live, rows.h, 0.0))
        share, error = self._rule(walk, aux, rows)
        size = jax.tree.map(lambda a, b: jnp.abs(a) + jnp.abs(b), aux.mu, share)
        # a sum of local errors is held against what as many steps may have
        count = jnp.maximum(jnp.sum(live, 0), 1)
        fine = mu_error(r, error, size, self.rtol, self.atol) <= count
        if r.lanes > 1 and any(a is None for a in r.axes):
            # one sum over all lanes has one error: they stand or fall together
            fine = jnp.broadcast_to(jnp.all(fine), fine.shape)
        mu = accept(r, aux.mu, share, fine)

        def again(mu):
            work = Intervals.of_rows(live & ~fine)
            return integrate_adaptively(walk, aux.p, rows, work, mu, self.nodes or 3, self.rtol, self.atol)

        mu, failed = lax.cond(jnp.all(fine), lambda m: (m, jnp.zeros(r.lanes, bool)), again, mu)
        rows = rows._replace(used=jnp.zeros_like(rows.used), failed=rows.failed | failed)
        return aux._replace(mu=mu, integral=rows, bad=aux.bad | failed)

    def _rule(self, walk: CostateWalk, aux: CostateAux, rows: Rows) -> tuple[Mu, Mu]:
        """The share of all rows, and the estimate of its error."""
        r, tableau = walk.reverse, walk.reverse.tableau
        real = rows.t.dtype
        if self.nodes is not None:
            whole = jnp.broadcast_to(jnp.zeros((), real), rows.t.shape), jnp.ones_like(rows.t)
            t, lam, u, weights, errors = node_values(walk, rows, *whole, self.nodes)
        else:
            c, b = jnp.asarray(tableau.c, real), np.append(tableau.b, 0.0)
            t = rows.t[:, None] + c[:, None] * rows.h[:, None]  # (Q, X, B)
            combined = jnp.einsum("ij,qbjm->qibm", jnp.asarray(tableau.a, real), rows.k)
            y = rows.y[:, None] + rows.h[:, None, :, None] * combined
            lam = y[..., : walk.n]
            u = y[..., walk.n :] if rows.stages is None else jnp.moveaxis(rows.stages, 2, 1)
            weights, errors = (jnp.asarray(x, real) for x in (b, b if tableau.e is None else tableau.e))
            # nodes of empty rows stand where the right-hand side is known to be finite
        flat = lambda x: x.reshape(-1, *x.shape[2:])  # noqa: E731
        # d mu = -(df/dp)' lam dt, and the walk goes backwards
        lams = tuple(-(w[:, None] * rows.h[:, None])[..., None] * lam for w in (weights, errors))
        live = (rows.h != 0)[:, None, :, None]
        lams = tuple(flat(jnp.where(live, x, 0)) for x in lams)
        u = jnp.where(live, u, r.args.u0)
        t = jnp.where(live[..., 0], t, r.args.schedule.t0)
        share, error = r.pull_params_each(lams, flat(u), flat(t), aux.p)
        return share, error if self.nodes is not None or tableau.e is not None else jax.tree.map(jnp.zeros_like, error)


def accept(r: Reverse, mu: Mu, share: Mu, fine: Array) -> Mu:
    """``mu`` and the share of the lanes that are ``fine``."""

    def leaf(x, s, axis):
        keep = fine[0] if axis is None else fine.reshape((-1,) + (1,) * (s.ndim - 1))
        return x + jnp.where(keep, s, 0)

    leaves = tuple(map(leaf, mu.leaves, share.leaves, r.axes))
    return Mu(leaves, None if mu.packed is None else leaf(mu.packed, share.packed, 0))
