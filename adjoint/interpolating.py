"""InterpolatingAdjoint: lam is solved backwards, with u(t) from the forward solve's dense output."""

from __future__ import annotations

from dataclasses import dataclass

from .costate import CostateWalk
from .costate_solve import solve_costate
from .point_integral import parameter_integral
from .reverse import Reverse
from .sensealg import Costate, DenseAdjoint
from .tolerances import reverse_tolerances


@dataclass(frozen=True)
class InterpolatingAdjoint(DenseAdjoint):
    """Reverse state [lam, mu]; memory: the dense forward solve, or checkpoints.

    ``d lam/dt = -(df/du)' lam``, ``d mu/dt = -(df/dp)' lam`` with u(t) interpolated from the record. mu is integrated by
    the Runge-Kutta method that integrates lam, and its error is estimated by the same embedded method, many steps at a
    time; where it is too large, by adaptive quadrature. So parameters do not drive the steps (the semi-norm), and are
    accurate all the same.

    Cost: one state VJP for each reverse stage and one batched parameter VJP for many reverse steps; the solve restarts
    at every saved row, where lam jumps. Source: Rackauckas et al., arXiv:1812.01892; the semi-norm: Kidger, Chen &
    Lyons, arXiv:2009.09457.
    """

    def reverse(self, problem: Reverse) -> Costate:
        walk = CostateWalk(problem, parameter_integral(problem, *reverse_tolerances(problem, self)))
        return solve_costate(problem, self, walk)
