"""Parameter integrals that are summed up along the steps of lam.

    mu = int (df/dp)' lam dt

Each step adds one share: a sum over points with weights of their own. A second set of weights over the same points
estimates its error, from the same linearisation; where the error counts, a step whose share is not accurate enough is
taken again, shorter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ..solvers.runge_kutta import Step
from .costate import CostateAux, CostateWalk
from .norms import mu_error
from .parameter_integral import ParameterIntegral
from .reverse import Mu


class Points(NamedTuple):
    """Points of a step: ``lam, u (X, B, n)``, ``t (X, B)``; weights ``(X,)`` in units of the step length."""

    lam: Array
    u: Array
    t: Array
    weights: Array
    error_weights: Array | None


@dataclass(frozen=True)
class StepShares(ParameterIntegral):
    """``control``: whether the error of mu counts in the choice of steps, at ``rtol, atol (B,)``."""

    control: bool
    rtol: Array
    atol: Array

    def points(self, walk: CostateWalk, aux: CostateAux, step: Step) -> Points:
        """Where the integrand is taken, and with what weights."""
        raise NotImplementedError

    def _points(self, walk: CostateWalk, aux: CostateAux, step: Step) -> Points:
        points, args, idle = self.points(walk, aux, step), walk.reverse.args, walk.reverse.idle
        if idle is None:
            return points
        lam, u = (jnp.where(idle[:, None], other, x) for other, x in ((0, points.lam), (args.u0, points.u)))
        return points._replace(lam=lam, u=u, t=jnp.where(idle, args.schedule.t0, points.t))

    def error(self, walk: CostateWalk, aux: CostateAux, step: Step):
        r = walk.reverse
        if not has_parameters(aux.mu):
            return None, None
        points = self._points(walk, aux, step)
        if not self.control or points.error_weights is None:
            return None, (points, None)
        # d mu = -(df/dp)' lam dt, and the walk goes backwards
        lams = tuple(-(w[:, None] * step.h)[..., None] * points.lam for w in (points.weights, points.error_weights))
        share, error = r.pull_params_each(lams, points.u, points.t, aux.p)
        return mu_error(r, error, aux.mu, self.rtol, self.atol), (points, share)

    def add(self, walk: CostateWalk, aux: CostateAux, step: Step, accepted, extra: Any) -> CostateAux:
        if extra is None:
            return aux
        r, (points, share) = walk.reverse, extra
        if share is None or (r.lanes > 1 and any(a is None for a in r.axes)):
            # one sum over all lanes holds the accepted ones alone
            weights = -(points.weights[:, None] * step.h)[..., None]
            lam = jnp.where(accepted[:, None], weights * points.lam, 0)
            share = r.pull_params(lam, points.u, points.t, aux.p)
            return aux._replace(mu=r.add(aux.mu, share))

        def leaf(x, s):
            keep = accepted.reshape((-1,) + (1,) * (x.ndim - 1)) if s.ndim and r.lanes > 1 else accepted[0]
            return x + jnp.where(keep, s, 0)

        return aux._replace(mu=jax.tree.map(leaf, aux.mu, share))


def has_parameters(mu: Mu) -> bool:
    return bool(mu.leaves) or mu.packed is not None
