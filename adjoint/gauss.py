"""GaussAdjoint: lam alone is solved backwards; each of its steps adds its share of the parameters' integral by Gauss's rule.

``lam`` comes from the continuous extension of the reverse step, ``u`` from the dense forward solve. The Kronrod extension
of the rule gives the share and its error estimate from one batched VJP.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp

from ..solvers.runge_kutta import Step, interpolate
from .costate import CostateAux, CostateWalk
from .costate_solve import solve_costate
from .gauss_kronrod import gauss_kronrod
from .reverse import Reverse
from .sensealg import Costate, DenseAdjoint
from .step_shares import Points, StepShares
from .tolerances import reverse_tolerances


@dataclass(frozen=True)
class StepQuadrature(StepShares):
    """Points: the nodes of a Gauss-Kronrod rule with ``order`` Gauss points on the step."""

    order: int = 3

    def points(self, walk: CostateWalk, aux: CostateAux, step: Step) -> Points:
        nodes, kronrod, gauss = (jnp.asarray(x, step.t.dtype) for x in gauss_kronrod(self.order))
        fractions = jnp.broadcast_to(nodes[:, None], (len(nodes), len(step.t)))
        t = step.t + fractions * step.h
        lam = interpolate(walk.reverse.tableau, step.u[None], step.h[None], step.k[None], fractions)
        u = walk.dense(t, aux.segment, aux.row)
        return Points(lam, u, t, kronrod, kronrod - gauss)


@dataclass(frozen=True)
class GaussAdjoint(DenseAdjoint):
    """Reverse state lam alone; memory: the dense forward solve, or checkpoints.

    ``order``: Gauss points of the rule on each accepted reverse step (its Kronrod extension has 2 order + 1 nodes).
    ``seminorm=True`` leaves the error of the parameter integral out of the choice of steps: faster, and safe where df/dp
    varies no faster in time than lam and u do.

    Cost: one state VJP for each reverse stage and one batched parameter VJP for each reverse step; the solve restarts at
    every saved row. `QuadratureAdjoint` refines the integral where it needs it, without shortening the steps of lam.
    Source: Gauss-Kronrod: Kronrod, Nodes and Weights of Quadrature Formulas, 1965; the method: Rackauckas et al.,
    arXiv:2001.04385.
    """

    order: int = 3
    seminorm: bool = False

    def reverse(self, problem: Reverse) -> Costate:
        rtol, atol = reverse_tolerances(problem, self)
        walk = CostateWalk(problem, StepQuadrature(not self.seminorm, rtol, atol, self.order))
        return solve_costate(problem, self, walk)
