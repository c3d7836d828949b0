"""The protocol of a parameter integral: how ``mu = int (df/dp)' lam dt`` is taken along the walk of lam."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jax import Array

from ..solvers.runge_kutta import Step

if TYPE_CHECKING:
    from .costate import CostateAux, CostateWalk


class ParameterIntegral:
    """What a costate walk does about the parameters; its own data travel in ``aux.integral``."""

    def initial(self, walk: CostateWalk) -> Any:
        return ()

    def error(self, walk: CostateWalk, aux: CostateAux, step: Step) -> tuple[Array | None, Any]:
        """A scaled error of this step's share that the step must satisfy, and what `add` needs of it."""
        return None, None

    def add(
        self, walk: CostateWalk, aux: CostateAux, step: Step, accepted: Array, extra: Any
    ) -> CostateAux:
        """Take in a step (its share is empty where not accepted)."""
        return aux

    def full(self, aux: CostateAux) -> Array | None:
        """Whether the walk must `finish` before its next step, ``()``; None where mu is complete after each."""
        return None

    def pending(self, aux: CostateAux) -> Array | bool:
        """Whether the walk must `finish` before its end."""
        return False

    def finish(self, walk: CostateWalk, aux: CostateAux) -> CostateAux:
        """Complete ``mu``."""
        return aux
