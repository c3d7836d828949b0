"""InterpolatingAdjoint: lam is solved backwards, with u(t) from the forward solve's dense output."""

from __future__ import annotations

from dataclasses import dataclass

from .costate import CostateWalk, solve_costate
from .reverse import Reverse
from .sensealg import ContinuousAdjoint, Costate
from .stage_sums import StageSums
from .tolerances import reverse_tolerances


@dataclass(frozen=True)
class InterpolatingAdjoint(ContinuousAdjoint):
    """Reverse state [lam, mu]; memory: the dense forward solve.

    ``d lam/dt = -(df/du)' lam``, ``d mu/dt = -(df/dp)' lam`` with u(t) interpolated from the record. ``seminorm=True``
    leaves the parameters out of the error control of the reverse solve: faster with many parameters, and safe where
    df/dp varies no faster in time than lam and u do.

    Cost: one state VJP for each reverse stage and one batched parameter VJP for each reverse step; the solve restarts
    at every saved row, where lam jumps. Source: Rackauckas et al., arXiv:1812.01892; the semi-norm: Kidger, Chen &
    Lyons, arXiv:2009.09457.
    """

    seminorm: bool = False

    records_slopes = True

    def reverse(self, problem: Reverse) -> Costate:
        rtol, atol = reverse_tolerances(problem, self)
        walk = CostateWalk(problem, StageSums(not self.seminorm, rtol, atol))
        return solve_costate(problem, self, walk)
