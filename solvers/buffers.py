"""Writing one entry per lane into a buffer whose rows stand at axis 0 and lanes at axis 1."""

from __future__ import annotations

from functools import reduce

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

FEW = 4  # rows that are chosen one by one: there is less to compile, and less to do, than in a gather or a scatter


def put(buffer: Array, index: Array, value: Array, mask: Array) -> Array:
    """``buffer[index[b], b] = value[b]`` where ``mask[b]``; ``buffer (N, B, ...)``, ``index (B,)``, ``value (B, ...)``."""
    size, lanes = buffer.shape[:2]
    value = value.astype(buffer.dtype)
    if size == 0:
        return buffer
    if lanes == 1:
        at = jnp.clip(index[0], 0, size - 1)
        old = get_row(buffer, at)
        keep = (mask & (index < size)).reshape((1,) * value.ndim)
        return set_row(buffer, at, jnp.where(keep, value, old))
    if size <= FEW:
        here = mask & (index == jnp.arange(size, dtype=index.dtype)[:, None])
        return jnp.where(here.reshape(here.shape + (1,) * (value.ndim - 1)), value, buffer)
    at = jnp.where(mask, index, size)
    return buffer.at[at, jnp.arange(lanes, dtype=np.int32)].set(value, mode="drop", wrap_negative_indices=False)


def take(buffer: Array, index: Array) -> Array:
    """``buffer[index[b], b]``, shape ``(B, ...)``; indices are clipped to the buffer."""
    size, lanes = buffer.shape[:2]
    at = jnp.clip(index, 0, size - 1)
    if lanes == 1:
        return get_row(buffer, at[0])
    if size <= FEW:
        rows = [buffer[k] for k in range(size)]
        return reduce(lambda later, k: where_lanes(at <= k, rows[k], later), range(size - 2, -1, -1), rows[-1])
    place = at, jnp.arange(lanes, dtype=np.int32)
    return buffer.at[place].get(mode="promise_in_bounds", wrap_negative_indices=False)


def set_row(buffer: Array, row: Array, value: Array) -> Array:
    """``buffer[row] = value`` for all lanes at once; ``row`` is not negative."""
    return lax.dynamic_update_index_in_dim(buffer, value.astype(buffer.dtype), row, 0, allow_negative_indices=False)


def get_row(buffer: Array, row: Array | int) -> Array:
    """``buffer[row]`` for all lanes at once; ``row`` is not negative."""
    return lax.dynamic_index_in_dim(buffer, row, 0, False, allow_negative_indices=False)


def where_lanes(mask: Array, yes: Array, no: Array) -> Array:
    """Select whole lanes: ``mask (B,)`` against arrays ``(B, ...)``."""
    return jnp.where(mask.reshape(mask.shape + (1,) * (yes.ndim - 1)), yes, no)
