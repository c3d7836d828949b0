"""BacksolveAdjoint: the state is solved backwards beside lam; nothing of the forward steps is kept."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .costate import CostateWalk
from .costate_solve import solve_costate
from .point_integral import parameter_integral
from .reverse import Reverse
from .sensealg import ContinuousAdjoint, Costate
from .tolerances import reverse_tolerances


@dataclass(frozen=True)
class BacksolveAdjoint(ContinuousAdjoint):
    """Reverse state [lam, mu, u]; memory: the saved rows and the limits of events only.

    ``checkpointing=True`` resets u to the recorded state at every saved row; at events it is always reset to the left
    limit. Where the system contracts, solving it backwards amplifies errors: then use another method. mu: see
    `InterpolatingAdjoint`.

    ``reconstruction_tolerance``: warn when the state solved backwards is found further than this from the recorded one, in
    units of ``atol + rtol |u|`` of the reverse solve; None: never. It is compared at saved rows, at right limits of events
    and at u0. `adjoint_sensitivities` tells the distance itself.

    Cost: one right-hand side and one state VJP for each reverse stage, one batched parameter VJP for many reverse steps.
    Source: Chen, Rubanova, Bettencourt & Duvenaud, arXiv:1806.07366.
    """

    checkpointing: bool = True
    reconstruction_tolerance: float | None = None

    records_steps = False
    reconstructs_state = True

    def reverse(self, problem: Reverse) -> Costate:
        tolerances, limit = reverse_tolerances(problem, self), self.reconstruction_tolerance
        compare = tolerances if problem.watch or limit is not None else None
        walk = CostateWalk(problem, parameter_integral(problem, *tolerances), True, self.checkpointing, compare)
        costate = solve_costate(problem, self, walk)
        if limit is not None:
            _warn_if_lost(costate.info.reconstruction, float(limit), self.checkpointing)
        return costate


def _warn_if_lost(error: Array, limit: float, checkpointing: bool) -> None:
    def warn(error: Any) -> None:
        cure = "more saved rows (saveat), at each of which the state is reset" if checkpointing else "checkpointing=True"
        warnings.warn(
            f"BacksolveAdjoint: the state that was solved backwards is {np.max(error):.3g} tolerances (atol + rtol |u|) away "
            f"from the state that the forward solve recorded, more than reconstruction_tolerance={limit:g}: the gradient was "
            "taken along a wrong trajectory. The equation is unstable backwards in time: use InterpolatingAdjoint(), or "
            f"{cure}.",
            RuntimeWarning,
            stacklevel=1,
        )

    def tell(error: Array) -> None:
        jax.debug.callback(warn, error)

    # written so that NaN is told too
    jax.lax.cond(jnp.all(error <= limit), lambda e: None, tell, error)
