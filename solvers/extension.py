"""Dense output of a finished solve: ``sol(t)``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .packing import Packing
from .record import Steps
from .runge_kutta import interpolate
from .schedule import concrete
from .tableau import Tableau


@jax.custom_vjp
def without_gradient(x: Any) -> Any:
    """``x``; a gradient that would have to pass through it is refused."""
    return x


def _refuse(_, __):
    raise TypeError(
        "sol(t) from dense output has no gradient. Ask for the times with solve(..., saveat=t): "
        "saved rows are differentiable, in their times too."
    )


without_gradient.defvjp(lambda x: (x, None), _refuse)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DenseOutput:
    """The continuous extension of every step of one solve."""

    t0: Array
    t1: Array
    steps: Steps
    tableau: Tableau = field(metadata={"static": True})
    packing: Packing = field(metadata={"static": True})

    def __call__(self, t: Any) -> Any:
        """The state at ``t``, any shape: leaves get ``t.shape`` in front; NaN outside the span."""
        a, b, known = concrete(self.t0), concrete(self.t1), concrete(t)
        if a is not None and b is not None and known is not None and np.ndim(a) == 0:
            low, high = min(a, b), max(a, b)
            outside = (known < low) | (known > high)
            if np.any(outside):
                raise ValueError(f"sol(t): {np.ravel(known)[np.ravel(outside)][0]} lies outside ({a}, {b}).")
        t = jnp.asarray(t, self.steps.t.dtype)
        flat = jax.vmap(self._at)(t.reshape(-1))
        return self.packing.unpack(flat.reshape(*t.shape, flat.shape[-1])[..., : self.packing.size])

    def _at(self, t: Array) -> Array:
        s = self.steps
        d = jnp.where(self.t1 >= self.t0, 1.0, -1.0).astype(s.t.dtype)
        rows = jnp.arange(s.t.shape[0], dtype=np.int32)
        real = (s.h != 0) & (rows < s.count)
        first = jnp.argmax(real)
        row = jnp.max(jnp.where(real & (d * s.t < d * t), rows, first.astype(np.int32)))
        h = jnp.where(s.h[row] != 0, s.h[row], jnp.ones_like(t))
        u = interpolate(self.tableau, s.u[row], h, s.k[row], (t - s.t[row]) / h)
        end = self.t1
        inside = (d * t >= d * self.t0) & (d * t <= d * end)
        return jnp.where(inside, u, jnp.nan)
