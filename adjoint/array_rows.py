"""Transposed steps of a compact system: one lane, and all that a step computes in one native function."""

from __future__ import annotations

from jax import Array

from .reverse import Mu
from .stage_rows import StageRows


class ArrayRows(StageRows):
    """The right-hand side as it stands; the parameters' cotangent is that of the sweep."""

    def slope(self, x: Array, t: Array, p: Array | None) -> Array:
        return self.reverse.rhs(t, x.T, p).T

    def pull(self, v: Array, x: Array, t: Array, p: Array | None) -> tuple[Array, Mu | None]:
        r = self.reverse
        mu, (u, _) = r.vjp(lambda th, u_, t_: r.system.rhs(u_, th, t_), (x.T, t), p)[1](v.T)
        return u.T, mu
