"""How saved rows enter the recorded steps that hold them: through the continuous extension, so that they cost no stop."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..solvers.buffers import take
from .reverse import Reverse

GATHERED = 2**11  # numbers of saved rows that are taken in together, at most


def take_saves(reverse: Reverse, save: Array, low: Array, t: Array, h: Array) -> tuple[Array, Array, Array]:
    """Cotangents of the saves before number ``save (B,)`` that lie in the rows ``low, low + 1, ...`` at ``t, h (C, B)``.

    Those of the states ``(C, B, n)`` and of the slopes ``(C, B, s+1, n)``, and the number of the first save in these rows.
    """
    tableau = reverse.tableau
    saves, bars = reverse.result.saves, reverse.cotangents.saves
    size, lanes, n = t.shape[0], reverse.lanes, bars.shape[-1]
    ubar = jnp.zeros((size, lanes, n), bars.dtype)
    kbar = jnp.zeros((size, lanes, tableau.stages + 1, n), bars.dtype)
    count = bars.shape[0]
    if count == 0:
        return save, ubar, kbar
    width = min(count, 16, max(1, GATHERED // (lanes * n)))

    def remaining(save):
        return (save > 0) & (take(saves.row, save - 1) >= low)

    def gather(x, index):
        index = jnp.clip(index, 0, count - 1)
        return x[index, jnp.arange(lanes, dtype=np.int32)[None, :]]

    def body(carry):
        save, ubar, kbar = carry
        index = save[None, :] - 1 - jnp.arange(width, dtype=np.int32)[:, None]
        row = gather(saves.row, index)
        on = (index >= 0) & (row >= low)
        local = jnp.where(on, row - low, 0)
        bar = jnp.where(on[..., None], gather(bars, index), 0)
        hs = jnp.take_along_axis(h, local, 0)
        ts = jnp.take_along_axis(t, local, 0)
        some = hs != 0
        theta = jnp.where(some, (gather(saves.t, index) - ts) / jnp.where(some, hs, 1.0), 1.0)
        weights = hs[..., None] * tableau.dense_weights(jnp.clip(theta, 0.0, 1.0))
        hot = (local[..., None] == jnp.arange(size, dtype=np.int32)).astype(t.dtype)
        ubar = ubar + jnp.einsum("wbc,wbn->cbn", hot.astype(bar.dtype), bar)
        kbar = kbar + jnp.einsum("wbc,wbs,wbn->cbsn", *(x.astype(bar.dtype) for x in (hot, weights)), bar)
        return save - jnp.sum(on, 0, dtype=save.dtype), ubar, kbar

    return lax.while_loop(lambda c: jnp.any(remaining(c[0])), body, (save, ubar, kbar))
