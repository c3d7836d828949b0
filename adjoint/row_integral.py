"""Parameter integrals over many steps of lam at once.

    mu = int (df/dp)' lam dt

The steps of lam are kept until there are `ROWS` of them; a rule of fixed points on every step, evaluated for all of them
as one batched VJP, gives their share of mu and an estimate of its error. Where the estimate is too large, the share is
taken again by adaptive quadrature (`halving`). So the parameters are integrated to the tolerance, and never shorten a
step of lam.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..solvers.runge_kutta import Step
from .costate import CostateAux, CostateWalk
from .halving import accept, integrate_adaptively
from .lam_rows import LamRows, of_live_rows, points_of
from .norms import mu_error
from .parameter_integral import ParameterIntegral
from .reverse import Mu

ROWS = 32  # steps of lam kept before their integral is taken
POINTS = 2**16  # ... fewer where many lanes have as many points together


@dataclass(frozen=True)
class RowIntegral(ParameterIntegral):
    """``nodes``: the order of the Gauss rule, None for the stages of the steps."""

    rtol: Array
    atol: Array
    nodes: int | None = None

    def initial(self, walk: CostateWalk) -> Any:
        r = walk.reverse
        if not r.has_mu:
            return ()
        count = int(np.clip(POINTS // ((r.tableau.stages + 1) * r.lanes), 4, ROWS))
        return LamRows.empty(walk, count, self.rtol.dtype, self.nodes is None)

    def add(self, walk: CostateWalk, aux: CostateAux, step: Step, accepted, extra: Any) -> CostateAux:
        if not walk.reverse.has_mu:
            return aux
        rows: LamRows = aux.integral
        return aux._replace(integral=rows.put(aux, step, accepted))

    def full(self, aux: CostateAux) -> Array | None:
        rows = aux.integral
        return rows.used == rows.t.shape[0] if isinstance(rows, LamRows) else None

    def pending(self, aux: CostateAux) -> Array | bool:
        return aux.integral.used > 0 if isinstance(aux.integral, LamRows) else False

    def finish(self, walk: CostateWalk, aux: CostateAux) -> CostateAux:
        """Integrate over all rows, and empty them."""
        r = walk.reverse
        if not r.has_mu:
            return aux
        rows: LamRows = aux.integral
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
            return integrate_adaptively(walk, aux.p, rows, live & ~fine, mu, self.nodes or 3, self.rtol, self.atol)

        mu, failed = lax.cond(jnp.all(fine), lambda m: (m, jnp.zeros(r.lanes, bool)), again, mu)
        rows = rows._replace(used=jnp.zeros_like(rows.used))
        return aux._replace(mu=mu, integral=rows, bad=aux.bad | failed)

    def _rule(self, walk: CostateWalk, aux: CostateAux, rows: LamRows) -> tuple[Mu, Mu]:
        """The share of all rows, and the estimate of its error."""
        p = of_live_rows(walk, rows, points_of(walk, rows, self.nodes))
        flat = lambda x: x.reshape(-1, *x.shape[2:])  # noqa: E731
        # d mu = -(df/dp)' lam dt, and the walk goes backwards
        lams = (-(w[:, None] * rows.h[:, None])[..., None] * p.lam for w in (p.weights, p.errors))
        share, error = walk.reverse.pull_params_each(tuple(map(flat, lams)), flat(p.u), flat(p.t), aux.p)
        return share, error
