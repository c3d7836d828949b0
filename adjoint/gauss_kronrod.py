"""Gauss-Kronrod rules on [0, 1].

The 2n+1 Kronrod nodes are the n Gauss nodes and the roots of the Stieltjes polynomial E of degree n+1, which satisfies
``int P_n(x) E(x) x^k dx = 0`` for k = 0..n (Kronrod 1965). The difference of both rules is the error estimate.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.polynomial import Polynomial
from scipy.special import legendre, roots_legendre


@lru_cache
def gauss_kronrod(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``(nodes, kronrod weights, gauss weights)``, each ``(2n+1,)``, in increasing order; unused Gauss weights are 0."""
    p = Polynomial(legendre(n).coef[::-1])
    x = Polynomial([0.0, 1.0])

    def integral(q: Polynomial) -> float:
        i = q.integ()
        return i(1.0) - i(-1.0)

    powers = [x**k for k in range(n + 2)]
    matrix = np.array([[integral(p * powers[j] * powers[k]) for j in range(n + 1)] for k in range(n + 1)])
    right = -np.array([integral(p * powers[n + 1] * powers[k]) for k in range(n + 1)])
    # the parity of E leaves rows of zeros: least squares picks the solution of the others
    coefficients = np.linalg.lstsq(matrix, right, rcond=None)[0]
    stieltjes = Polynomial([*coefficients, 1.0])
    extra = np.real(stieltjes.roots())
    slope = stieltjes.deriv()
    for _ in range(3):
        extra = extra - stieltjes(extra) / slope(extra)
    gauss, gauss_weights = roots_legendre(n)
    nodes = np.sort(np.concatenate([gauss, extra]))
    nodes = (nodes - nodes[::-1]) / 2
    vandermonde = np.polynomial.legendre.legvander(nodes, 2 * n).T
    moments = np.zeros(2 * n + 1)
    moments[0] = 2.0
    kronrod_weights = np.linalg.solve(vandermonde, moments)
    full = np.zeros(2 * n + 1)
    full[1::2] = gauss_weights
    return (nodes + 1) / 2, kronrod_weights / 2, full / 2
