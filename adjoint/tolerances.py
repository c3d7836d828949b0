"""Tolerances of a reverse solve: the method's own, or the forward ones."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from .reverse import Reverse
from .sensealg import ContinuousAdjoint


def reverse_tolerances(reverse: Reverse, method: ContinuousAdjoint) -> tuple[Array, Array]:
    """``(rtol, atol)``, each ``(B,)``."""
    args = reverse.args
    return tuple(  # type: ignore[return-value]
        forward if own is None else jnp.full_like(forward, own)
        for own, forward in ((method.rtol, args.rtol), (method.atol, args.atol))
    )
