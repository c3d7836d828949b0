"""Adaptive Gauss-Kronrod quadrature over steps of lam.

Intervals start as whole steps; those whose error estimate is too large are halved. The nodes of `BATCH` intervals of each
lane are one batched VJP.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..solvers.buffers import take
from .costate import CostateWalk
from .lam_rows import LamRows, nodes_of, of_live_rows
from .norms import mu_error
from .reverse import Mu, Reverse

BATCH = 4  # intervals of a lane that are integrated together
MAX_HALVINGS = 20


class Intervals(NamedTuple):
    """A stack of intervals for each lane: fractions of rows."""

    top: Array  # (B,)
    row: Array  # (C, B)
    low: Array  # (C, B), fraction of the row where the interval starts
    width: Array  # (C, B)

    @staticmethod
    def of_rows(live: Array) -> Intervals:
        """Whole rows, on the rows and lanes where ``live (Q, B)``."""
        count, lanes = live.shape
        capacity = count + BATCH * (MAX_HALVINGS + 1)
        index = jnp.arange(count, dtype=np.int32)[:, None]
        # rows to do first, in order, for each lane
        packed = jnp.argsort(jnp.where(live, index, index + count), axis=0).astype(np.int32)
        real = jnp.zeros((capacity, lanes))
        row = jnp.pad(packed, ((0, capacity - count), (0, 0)))
        return Intervals(jnp.sum(live, 0).astype(np.int32), row, real, real + 1)


def integrate_adaptively(
    walk: CostateWalk, p: Array | None, rows: LamRows, work: Intervals, mu: Mu, order: int, rtol: Array, atol: Array
) -> tuple[Mu, Array]:
    """Add the integral over the intervals of ``work`` to ``mu``; also which lanes failed, ``(B,)``."""
    none = jnp.zeros_like(work.top, bool)

    def body(carry):
        return _integrate_some(walk, p, rows, order, rtol, atol, *carry)

    work = work._replace(low=work.low.astype(rows.t.dtype), width=work.width.astype(rows.t.dtype))
    _, mu, failed = lax.while_loop(lambda c: jnp.any(c[0].top > 0), body, (work, mu, none))
    return mu, failed


def _integrate_some(walk, p, rows, order, rtol, atol, work: Intervals, mu: Mu, failed):
    """Take up to `BATCH` intervals off each lane's stack; accept them, or put their halves back."""
    r = walk.reverse
    slot = work.top[None] - 1 - jnp.arange(BATCH, dtype=np.int32)[:, None]
    on = slot >= 0
    at = lambda x, i: jax.vmap(lambda j: take(x, j))(i)  # noqa: E731
    row, low, width = (at(x, jnp.maximum(slot, 0)) for x in (work.row, work.low, work.width))
    names = [f for f in ("t", "h", "y", "k", "segment", "row")]
    some = rows._replace(**{f: at(getattr(rows, f), row) for f in names})
    some = some._replace(h=jnp.where(on, some.h, 0.0))
    points = of_live_rows(walk, some, nodes_of(walk, some, low, width, order))
    # d mu = -(df/dp)' lam dt, and the walk goes backwards: h is negative in the direction of integration
    scale = -(some.h * width)[:, None]

    def share(w):
        return (w[:, None] * scale)[..., None] * points.lam

    totals, errors = jax.vmap(lambda a, b, v, s: r.pull_params_each((a, b), v, s, p))(
        share(points.weights), share(points.errors), points.u, points.t
    )
    size = jax.tree.map(lambda a, b: jnp.abs(a) + jnp.max(jnp.abs(b), 0), mu, totals)
    scaled = jax.vmap(lambda e: mu_error(r, e, size, rtol, atol))(errors)  # (W, B)
    scaled = jnp.where(on, scaled, 0.0)
    exhausted = width <= 2.0**-MAX_HALVINGS
    fine = (scaled <= 1) | exhausted
    if r.lanes > 1 and any(a is None for a in r.axes):
        # one sum over all lanes has one error: its intervals stand or fall together
        fine = jnp.broadcast_to(jnp.all(fine, 1, keepdims=True), fine.shape)
    failed = failed | jnp.any(on & (((scaled > 1) & exhausted) | ~jnp.isfinite(scaled)), 0)
    fine = fine | ~jnp.isfinite(scaled)
    mu = _accept(r, mu, totals, fine)
    top = jnp.maximum(work.top - BATCH, 0)
    again = on & ~fine
    # halves of rejected intervals go back on the stack, side by side
    place = top + 2 * (jnp.cumsum(again, 0, dtype=np.int32) - again)
    pairs = ((work.row, row, row), (work.low, low, low + 0.5 * width), (work.width, 0.5 * width, 0.5 * width))
    stacks = (_push(buffer, place, jnp.stack([first, second], 1), again) for buffer, first, second in pairs)
    return Intervals(top + 2 * jnp.sum(again, 0, dtype=np.int32), *stacks), mu, failed


def _push(buffer: Array, place: Array, pair: Array, on: Array) -> Array:
    """Write ``pair (W, 2, B)`` at rows ``place (W, B)`` and the next ones."""
    capacity, lanes = buffer.shape
    rows = jnp.stack([place, place + 1], 1)
    rows = jnp.where(on[:, None], rows, capacity)
    return buffer.at[rows, jnp.arange(lanes, dtype=np.int32)].set(pair, mode="drop")


def _accept(r: Reverse, mu: Mu, totals: Mu, fine: Array) -> Mu:
    def leaf(x, total, axis):
        keep = fine[:, 0] if axis is None else fine
        keep = keep.reshape(keep.shape + (1,) * (total.ndim - keep.ndim))
        return x + jnp.sum(jnp.where(keep, total, 0), 0)

    leaves = tuple(map(leaf, mu.leaves, totals.leaves, r.axes))
    return Mu(leaves, None if mu.packed is None else leaf(mu.packed, totals.packed, 0))
