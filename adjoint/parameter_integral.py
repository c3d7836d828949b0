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
        self, walk: CostateWalk, aux: CostateAux, step: Step, accepted: Array, due: Array, extra: Any
    ) -> CostateAux:
        """Take in a step (its share is empty where not accepted).

        Lanes that are ``due`` stand where ``mu`` is needed: it must be complete afterwards.
        """
        return aux

    def finish(self, walk: CostateWalk, aux: CostateAux) -> CostateAux:
        """Complete ``mu`` at the end of the walk."""
        return aux
