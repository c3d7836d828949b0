"""The parameter integral by the Runge-Kutta method that integrates lam.

The parameters do not feed back into lam, so the method's own weights, applied to (df/dp)' lam at the stages, integrate
mu as if it were part of the reverse state, but with one batched VJP for each step instead of one for each stage.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from ..solvers.runge_kutta import Step
from .costate import CostateAux, CostateWalk
from .step_shares import Points, StepShares


@dataclass(frozen=True)
class StageSums(StepShares):
    """Points: the stages, and the end of the step where the error estimate asks for it."""

    def points(self, walk: CostateWalk, aux: CostateAux, step: Step) -> Points:
        tableau = walk.reverse.tableau
        controlled = self.control and tableau.e is not None
        y, c, b = jnp.moveaxis(step.states, 1, 0), tableau.c[:-1], tableau.b
        if controlled:
            y, c, b = jnp.concatenate([y, step.u1[None]]), tableau.c, np.append(b, 0.0)
        c, b, e = (jnp.asarray(x, step.t.dtype) for x in (c, b, tableau.e if controlled else b))
        t = step.t + c[:, None] * step.h
        u = y[..., walk.n :] if walk.dense is None else jax.vmap(lambda s: walk.dense(s, aux.segment))(t)
        return Points(y[..., : walk.n], u, t, b, e if controlled else None)
