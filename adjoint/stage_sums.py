"""The parameter integral by the Runge-Kutta method that integrates lam.

The parameters do not feed back into lam, so the method's own weights, applied to (df/dp)' lam at the stages, integrate
mu as if it were part of the reverse state, but with one batched VJP for each step instead of one for each stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ..solvers.buffers import where_lanes
from ..solvers.runge_kutta import Step
from .costate import CostateAux, CostateWalk, ParameterIntegral
from .norms import mu_error
from .reverse import Mu


@dataclass(frozen=True)
class StageSums(ParameterIntegral):
    """``control``: whether the error of mu counts in the choice of steps."""

    control: bool
    rtol: Array
    atol: Array

    def _points(self, walk: CostateWalk, aux: CostateAux, step: Step) -> tuple[Array, Array, Array]:
        """``lam``, ``u`` and ``t`` at the stages and at the end, points first: ``(s+1, B, ...)``."""
        c = walk.reverse.tableau.c.astype(step.t.dtype)
        y = jnp.moveaxis(jnp.concatenate([step.states, step.u1[:, None]], 1), 1, 0)
        t = step.t[None] + c[:, None] * step.h[None]
        if walk.dense is None:
            u = y[..., walk.n :]
        else:
            u = jax.vmap(lambda s: walk.dense(s, aux.segment))(t)
        return y[..., : walk.n], u, t

    def error(self, walk: CostateWalk, aux: CostateAux, step: Step):
        points = self._points(walk, aux, step)
        tableau = walk.reverse.tableau
        if not self.control or tableau.e is None or not _has_parameters(aux.mu):
            return None, points
        lam, u, t = points
        weights = -step.h[None] * tableau.e.astype(step.h.dtype)[:, None]
        error = walk.reverse.pull_params(weights[..., None] * lam, u, t, aux.p)
        return mu_error(walk.reverse, error, aux.mu, self.rtol, self.atol), points

    def add(self, walk: CostateWalk, aux: CostateAux, step: Step, accepted, due, extra: Any) -> CostateAux:
        if not _has_parameters(aux.mu):
            return aux
        lam, u, t = (x[:-1] for x in extra)
        weights = -step.h[None] * walk.reverse.tableau.b.astype(step.h.dtype)[:, None]
        lam = where_lanes(accepted, jnp.moveaxis(weights[..., None] * lam, 1, 0), 0.0 * jnp.moveaxis(lam, 1, 0))
        mu = walk.reverse.pull_params(jnp.moveaxis(lam, 0, 1), u, t, aux.p)
        return aux._replace(mu=walk.reverse.add(aux.mu, mu))


def _has_parameters(mu: Mu) -> bool:
    return bool(mu.leaves) or mu.packed is not None
