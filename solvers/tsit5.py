"""Tsitouras' 5(4) pair: six evaluations per step, FSAL, with a free fourth-order interpolant.

Source of every coefficient: Ch. Tsitouras, "Runge-Kutta pairs of order 5(4) satisfying only the first
column simplifying assumption", Computers & Mathematics with Applications 62 (2011) 770-775.
"""

from __future__ import annotations

import numpy as np
from numpy.polynomial import Polynomial

from .explicit import ExplicitRungeKutta
from .tableau import Tableau

_A = np.zeros((7, 7))
_A[1, :1] = [161 / 1000]
_A[2, :2] = [-0.008480655492356989, 0.335480655492357]
_A[3, :3] = [2.8971530571054935, -6.359448489975075, 4.3622954328695815]
_A[4, :4] = [5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525]
_A[5, :5] = [5.86145544294642, -12.92096931784711, 8.159367898576159, -0.071584973281401, -0.028269050394068383]
_A[6, :6] = [
    0.09646076681806523,
    0.01,
    0.4798896504144996,
    1.379008574103742,
    -3.290069515436081,
    2.324710524099774,
]
_C = np.array([0.0, 161 / 1000, 327 / 1000, 9 / 10, 0.9800255409045097, 1.0, 1.0])
_E = np.array(
    [
        -0.00178001105222577714,
        -0.0008164344596567469,
        0.007880878010261995,
        -0.1447110071732629,
        0.5823571654525552,
        -0.45808210592918697,
        1 / 66,
    ]
)


def _interpolant() -> np.ndarray:
    """The factored polynomials of the paper, multiplied out: row i holds the powers 1..4 of theta."""
    x = Polynomial([0.0, 1.0])
    rows = [
        -1.0530884977290216 * x * (x - 1.3299890189751412) * (x**2 - 1.4364028541716351 * x + 0.7139816917074209),
        0.1017 * x**2 * (x**2 - 2.1966568338249754 * x + 1.2949852507374631),
        2.490627285651252793 * x**2 * (x**2 - 2.38535645472061657 * x + 1.57803468208092486),
        -16.54810288924490272 * (x - 1.21712927295533244) * (x - 0.61620406037800089) * x**2,
        47.37952196281928122 * (x - 1.203071208372362603) * (x - 0.658047292653547382) * x**2,
        -34.87065786149660974 * (x - 1.2) * (x - 0.666666666666666667) * x**2,
        2.5 * (x - 1) * (x - 0.6) * x**2,
    ]
    return np.stack([row.coef[1:5] for row in rows])


TSIT5 = Tableau(name="Tsit5", order=5, c=_C, a=_A, e=_E, dense=_interpolant())


class Tsit5(ExplicitRungeKutta):
    """Tsitouras 5(4), adaptive by default.

    ``Tsit5(adaptive=False)`` takes equal steps of the length ``dt0`` given to ``solve`` (each segment
    between two events ends with a shorter step where the length does not divide it).
    """

    tableau = TSIT5
