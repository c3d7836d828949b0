"""FiniteDifferenceVJP: central differences of the right-hand side in JAX, to check other backends with.

    (lam' df/dx)_j ~ lam' (f(x + h_j e_j) - f(x - h_j e_j)) / 2 h_j,      h_j = step max(1, |x_j|)

for every entry of u, p, t and of the arrays that f closes over. Complex cotangents follow JAX: of x + iy,
d/dx - i d/dy of ``Re(lam' f)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from ..params import Params, is_inexact
from .base import RHS
from .dressing import Bars, Point, with_pullback

CHUNK = 64  # directions that are evaluated together


@dataclass(frozen=True)
class FiniteDifferenceVJP:
    """Central finite differences; a check on other backends, not a way to train.

    step: relative step, by default the cube root of the machine epsilon of each leaf (6e-6 in float64, 5e-3 in
    float32), where truncation and rounding are about equal: errors near 1e-10 and 1e-4 of f over the scale of x.

    Cost: two evaluations for each entry of what a cotangent is asked for, twice that if complex, up to 64 entries at a
    time in one batch. Restriction: first derivatives in reverse mode.
    """

    step: float | None = None

    def __post_init__(self):
        if self.step is not None and not (isinstance(self.step, float) and 0 < self.step < 1):
            raise ValueError(f"FiniteDifferenceVJP: step must be a number between 0 and 1; got {self.step!r}.")

    def dress(self, f: RHS) -> RHS:
        return with_pullback(f, self._pull, self)

    def _pull(self, value: Callable[[Point], Any], params: Params, lam: Any, x: Point, own: None) -> Bars:
        def one(field: str, i: int, leaf: Any) -> Any:
            leaves, tree = jax.tree.flatten(getattr(x, field))

            def at(moved):
                full = tree.unflatten([*leaves[:i], moved, *leaves[i + 1 :]])
                return value(x._replace(**{field: full}))

            return self._cotangent(at, leaf, lam)

        def all_of(field: str) -> list[Any]:
            leaves = jax.tree.leaves(getattr(x, field))
            return [one(field, i, leaf) if is_inexact(leaf) else None for i, leaf in enumerate(leaves)]

        u = jax.tree.unflatten(jax.tree.structure(x.u), all_of("u"))
        return Bars(u, all_of("p"), all_of("t")[0], all_of("held"))

    def _cotangent(self, f: Callable[[Any], Any], x: Any, lam: Any) -> Any:
        """``lam' df/dx`` for one array ``x``."""
        real = np.finfo(x.dtype).dtype
        step = np.asarray(np.cbrt(np.finfo(real).eps) if self.step is None else self.step, real)
        flat = jnp.ravel(x)
        h = step * jnp.maximum(jnp.ones((), real), jnp.abs(flat))
        signs = np.array([1, -1], real)

        def along(j, unit):
            here = jnp.arange(flat.size, dtype=np.int32) == j

            def side(sign):
                move = jnp.where(here, sign * h, jnp.zeros_like(h)).astype(x.dtype) * unit
                return f((flat + move).reshape(x.shape))

            ends = jax.vmap(side)(signs)
            pairs = zip(jax.tree.leaves(lam), jax.tree.leaves(ends), strict=True)
            total = sum((jnp.sum(a * (b[0] - b[1])).real.astype(real) for a, b in pairs), jnp.zeros((), real))
            return total / (2 * h[j])

        def sweep(unit):
            entries, unit = jnp.arange(flat.size, dtype=np.int32), np.asarray(unit, x.dtype)
            if flat.size <= CHUNK:
                return jax.vmap(lambda j: along(j, unit))(entries)
            return jax.lax.map(lambda j: along(j, unit), entries, batch_size=CHUNK)

        bar = sweep(1)
        if jnp.iscomplexobj(x):
            bar = jax.lax.complex(bar, -sweep(1j))
        return bar.reshape(x.shape).astype(x.dtype)
