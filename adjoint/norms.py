"""Scaled errors of parameter cotangents."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from .reverse import Mu, Reverse


def mu_error(reverse: Reverse, error: Mu, size: Mu, rtol: Array, atol: Array) -> Array:
    """``rms(error / (atol + rtol |size|))`` over all parameters of a lane, ``(B,)``.

    Cotangents that are summed over lanes have one error for all lanes.
    """
    total, entries = jnp.zeros(reverse.lanes, rtol.dtype), 0
    axes = (*reverse.axes, *(() if error.packed is None else (0,)))
    errors = (*error.leaves, *(() if error.packed is None else (error.packed,)))
    sizes = (*size.leaves, *(() if size.packed is None else (size.packed,)))
    for e, s, axis in zip(errors, sizes, axes, strict=True):
        lanes = reverse.lanes if axis == 0 else 1
        e, s = jnp.abs(e).reshape(lanes, -1), jnp.abs(s).reshape(lanes, -1)
        scale = atol[:lanes, None] + rtol[:lanes, None] * s
        total = total + jnp.sum((e / scale) ** 2, -1).astype(total.dtype)
        entries += e.shape[-1]
    return lax.stop_gradient(jnp.sqrt(total / max(entries, 1)))
