"""BacksolveAdjoint: the state is solved backwards beside lam; nothing of the forward steps is kept."""

from __future__ import annotations

from dataclasses import dataclass

from .costate import CostateWalk, solve_costate
from .reverse import Reverse
from .row_integral import RowIntegral
from .sensealg import ContinuousAdjoint, Costate
from .tolerances import reverse_tolerances


@dataclass(frozen=True)
class BacksolveAdjoint(ContinuousAdjoint):
    """Reverse state [lam, mu, u]; memory: the saved rows and the limits of events only.

    ``checkpointing=True`` resets u to the recorded state at every saved row; at events it is always reset to the left
    limit. Where the system contracts, solving it backwards amplifies errors: then use another method. mu: see
    `InterpolatingAdjoint`.

    Cost: one right-hand side and one state VJP for each reverse stage, one batched parameter VJP for many reverse steps.
    Source: Chen, Rubanova, Bettencourt & Duvenaud, arXiv:1806.07366.
    """

    checkpointing: bool = True

    records_steps = False

    def reverse(self, problem: Reverse) -> Costate:
        integral = RowIntegral(*reverse_tolerances(problem, self))
        walk = CostateWalk(problem, integral, solves_state=True, checkpoints=self.checkpointing)
        return solve_costate(problem, self, walk)
