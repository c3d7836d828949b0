"""The solver objects that users name, and the classical methods beside Tsit5.

A solver is a tableau and the question whether its steps adapt; `integrate` does the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .tableau import Tableau


@dataclass(frozen=True)
class ExplicitRungeKutta:
    """An explicit Runge-Kutta method; a subclass names its ``tableau``."""

    adaptive: bool = True
    tableau: ClassVar[Tableau]

    def __post_init__(self):
        if self.adaptive and self.tableau.e is None:
            raise ValueError(
                f"{type(self).__name__} has no error estimate and cannot choose its own steps: "
                f"write {type(self).__name__}(adaptive=False) and give solve a step, dt0=..."
            )


class Euler(ExplicitRungeKutta):
    """Explicit Euler, order 1, equal steps only; its continuous extension is the straight line."""

    tableau = Tableau(
        name="Euler",
        order=1,
        c=np.array([0.0, 1.0]),
        a=np.array([[0.0, 0.0], [1.0, 0.0]]),
        e=None,
        dense=np.array([[1.0], [0.0]]),
    )


class RK4(ExplicitRungeKutta):
    """The classical method of order 4 (Kutta 1901), equal steps only, with a cubic Hermite interpolant.

    The interpolant uses both ends of the step and both slopes there, and is of order 3.
    """

    tableau = Tableau(
        name="RK4",
        order=4,
        c=np.array([0.0, 0.5, 0.5, 1.0, 1.0]),
        a=np.array(
            [
                [0.0, 0, 0, 0, 0],
                [0.5, 0, 0, 0, 0],
                [0.0, 0.5, 0, 0, 0],
                [0.0, 0, 1, 0, 0],
                [1 / 6, 1 / 3, 1 / 3, 1 / 6, 0],
            ]
        ),
        e=None,
        # u + h [theta - 2 theta^2 + theta^3] k_0 + [3 theta^2 - 2 theta^3] (u1 - u) + h [theta^3 - theta^2] k_4
        dense=np.array([[1.0, -2.0, 1.0], [0, 0, 0], [0, 0, 0], [0, 0, 0], [0.0, -1.0, 1.0]])
        + np.outer([1 / 6, 1 / 3, 1 / 3, 1 / 6, 0], [0.0, 3.0, -2.0]),
    )
