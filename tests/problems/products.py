"""Right-hand sides of S7 (and V1), V3 and S13 with their vector-Jacobian products, for JAX and for a host in NumPy.

Those of S7 and V3 are one text for both, with ``xp`` for the library. S13 chooses its parameter by a state component: in
JAX by a traced index, on the host by a Python int and a branch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import jax.numpy as jnp
import numpy as np

from .known_events import S13
from .smooth import S7, V3


@dataclass(frozen=True)
class Products:
    """``rhs(u, p, t)``, ``vjp_u(lam, u, p, t)`` and ``vjp_p(lam, u, p, t)``."""

    rhs: Callable[[Any, Any, Any], Any]
    vjp_u: Callable[[Any, Any, Any, Any], Any]
    vjp_p: Callable[[Any, Any, Any, Any], Any]

    def vjp(self, lam, u, p, t):
        return self.vjp_u(lam, u, p, t), self.vjp_p(lam, u, p, t)

    def write(self, du, u, p, t):
        du[...] = self.rhs(u, p, t)


# ------------------------------------------------------------------ S7 and V1
def lotka(xp) -> Products:
    def rhs(u, p, t):
        x, y = u
        return xp.stack([p[0] * x - p[1] * x * y, -p[2] * y + p[3] * x * y])

    def vjp_u(lam, u, p, t):
        x, y = u
        return xp.stack([lam[0] * (p[0] - p[1] * y) + lam[1] * p[3] * y, -lam[0] * p[1] * x + lam[1] * (p[3] * x - p[2])])

    def vjp_p(lam, u, p, t):
        x, y = u
        return xp.stack([lam[0] * x, -lam[0] * x * y, -lam[1] * y, lam[1] * x * y])

    return Products(rhs, vjp_u, vjp_p)


# ------------------------------------------------------------------ V3
_ALONE = np.array([0, 1, 50, 74, 2, 80, 24])  # entries with a coefficient of their own
_PLACES = (np.arange(104) == _ALONE[:, None]).astype(float)
_IN_SUM = (np.arange(104) >= 3).astype(float)


def matrix(xp) -> Products:
    def coefficients(p):
        q = xp.reshape(p.T, (-1,))  # column by column
        return q, q[1] * q[50] * q[74], q[2] * q[80] * q[24], xp.sum(q[3:]) / 100

    def rhs(u, p, t):
        q, b, c, d = coefficients(p)
        x, y = u
        return xp.stack([q[0] * x - b * x * y, -c * y + d * x * y])

    def vjp_u(lam, u, p, t):
        q, b, c, d = coefficients(p)
        x, y = u
        return xp.stack([lam[0] * (q[0] - b * y) + lam[1] * d * y, -lam[0] * b * x + lam[1] * (d * x - c)])

    def vjp_p(lam, u, p, t):
        q, *_ = coefficients(p)
        x, y = u
        first, second = -lam[0] * x * y, -lam[1] * y
        alone = [
            lam[0] * x,
            *(first * q[50] * q[74], first * q[1] * q[74], first * q[1] * q[50]),
            *(second * q[80] * q[24], second * q[2] * q[24], second * q[2] * q[80]),
        ]
        bar = xp.stack(alone) @ _PLACES + lam[1] * x * y / 100 * _IN_SUM
        return xp.reshape(bar, (26, 4)).T

    return Products(rhs, vjp_u, vjp_p)


# ------------------------------------------------------------------ S13
def _switched_in_jax() -> Products:
    def rate(u, p):
        return p[jnp.round(u[2]).astype(int)]

    def rhs(u, p, t):
        a, (x, y, _) = rate(u, p), u
        return jnp.stack([a * x - x * y, -a * y + x * y, jnp.zeros_like(x)])

    def vjp_u(lam, u, p, t):
        a, (x, y, _) = rate(u, p), u
        return jnp.stack([lam[0] * (a - y) + lam[1] * y, -lam[0] * x + lam[1] * (x - a), jnp.zeros_like(x)])

    def vjp_p(lam, u, p, t):
        return jnp.zeros_like(p).at[jnp.round(u[2]).astype(int)].set(lam[0] * u[0] - lam[1] * u[1])

    return Products(rhs, vjp_u, vjp_p)


def _switched_on_a_host() -> Products:
    def rate(u, p):
        k = round(float(u[2]))
        if k == 0:
            return p[0]
        if k == 1:
            return p[1]
        return p[k]

    def rhs(u, p, t):
        a, (x, y, _) = rate(u, p), u
        return np.array([a * x - x * y, -a * y + x * y, 0.0])

    def vjp_u(lam, u, p, t):
        a, (x, y, _) = rate(u, p), u
        return np.array([lam[0] * (a - y) + lam[1] * y, -lam[0] * x + lam[1] * (x - a), 0.0])

    def vjp_p(lam, u, p, t):
        bar = np.zeros_like(p)
        bar[round(float(u[2]))] = lam[0] * u[0] - lam[1] * u[1]
        return bar

    return Products(rhs, vjp_u, vjp_p)


#: by case: the case, its products in JAX, its products in NumPy
PRODUCTS = {
    "S13 sum": (S13["sum"], _switched_in_jax(), _switched_on_a_host()),
    "S13 off_equilibrium": (S13["off_equilibrium"], _switched_in_jax(), _switched_on_a_host()),
    "S7": (S7, lotka(jnp), lotka(np)),
    "V1": (S7, lotka(jnp), lotka(np)),
    "V3": (V3, matrix(jnp), matrix(np)),
}
