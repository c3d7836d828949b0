"""QuadratureAdjoint: lam alone is solved backwards; the parameters' integral is a quadrature of its own.

    mu = int (df/dp)' lam dt

over each segment, by adaptive Gauss-Kronrod on the dense costate and the dense state. Intervals start as the steps of the
costate; those whose error estimate is too large are halved. The nodes of many intervals are one batched VJP.
"""

from __future__ import annotations

from dataclasses import dataclass

from .costate import CostateWalk
from .costate_solve import solve_costate
from .point_integral import parameter_integral
from .reverse import Reverse
from .sensealg import Costate, DenseAdjoint
from .tolerances import reverse_tolerances


@dataclass(frozen=True)
class QuadratureAdjoint(DenseAdjoint):
    """Reverse state lam alone; memory: the dense forward solve, or checkpoints, and a window of the dense costate.

    The parameter integral has its own error control, at ``rtol, atol`` of the reverse solve. ``order``: Gauss points of
    the rule (Kronrod extension: 2 order + 1 nodes on each interval).

    Cost: one state VJP for each reverse stage, and a batched parameter VJP over the nodes. Source: Kim et al.,
    arXiv:2103.15341, and Rackauckas et al., arXiv:2001.04385.
    """

    order: int = 3

    def reverse(self, problem: Reverse) -> Costate:
        walk = CostateWalk(problem, parameter_integral(problem, *reverse_tolerances(problem, self), nodes=self.order))
        return solve_costate(problem, self, walk)
