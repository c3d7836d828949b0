"""Taking the recorded steps again, from a checkpoint."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..solvers.buffers import get_row, set_row, take, where_lanes
from ..solvers.runge_kutta import interpolate, take_step
from .reverse import Reverse


class Block(NamedTuple):
    """Where the rows ``first, first + 1, ...`` start, and their slopes where they are wanted."""

    first: Array | int  # ()
    last: Array  # ()
    t: Array  # (W, B)
    u: Array  # (W, B, n)
    k: Array | None  # (W, B, s+1, n)


class _Carry(NamedTuple):
    row: Array
    t: Array
    u: Array
    k0: Array
    segment: Array
    block: Block


def block_of(reverse: Reverse, row: Array) -> Array:
    """The block that holds ``row ()``, or the last one."""
    steps = reverse.result.steps
    assert steps is not None
    return jnp.clip(row, 0, jnp.maximum(steps.count - 1, 0)) // block_rows(reverse)


def block_rows(reverse: Reverse) -> Array:
    steps = reverse.result.steps
    assert steps is not None and steps.stride is not None
    return jnp.maximum(steps.stride, reverse.options.block)


def recorded(reverse: Reverse, block: Array, window: int, padding: int) -> Block:
    """`replay` where all rows were kept: they are read."""
    steps, least = reverse.result.steps, reverse.options.block
    assert steps is not None
    first = block * least
    last = jnp.maximum(jnp.minimum(first + least, steps.count) - 1, first)

    def read(kept, empty):
        rows = lax.dynamic_slice_in_dim(kept, first, min(least, kept.shape[0]), 0, allow_negative_indices=False)
        return lax.dynamic_update_slice_in_dim(empty, rows, 0, 0)

    kept = steps.t, steps.u, steps.k
    return Block(first, last, *jax.tree.map(read, kept, _empty(reverse, window + padding, steps.k is not None)))


def _empty(reverse: Reverse, rows: int, slopes: bool) -> tuple[Array, Array, Array | None]:
    """``t, u, k`` of rows that are not taken: they stand where the right-hand side is known to be finite."""
    u0, t0 = reverse.args.u0, reverse.args.schedule.t0
    lanes, n = u0.shape
    k = jnp.zeros((rows, lanes, reverse.tableau.stages + 1, n), u0.dtype) if slopes else None
    return jnp.broadcast_to(t0, (rows, lanes)), jnp.broadcast_to(u0, (rows, lanes, n)), k


def replay(reverse: Reverse, block: Array, window: int, padding: int, slopes: bool) -> Block:
    """The rows of block ``block ()``, at most ``window``."""
    steps, log, tableau = reverse.result.steps, reverse.result.events, reverse.tableau
    assert steps is not None and steps.stride is not None
    outcome = reverse.result.outcome
    first = block * block_rows(reverse)
    used = jnp.arange(log.time.shape[0], dtype=np.int32)[:, None] < log.count

    def params(segment: Array) -> Array | None:
        if outcome.params is None or log.params is None or not log.params.shape[0]:
            return outcome.params
        return jnp.where((segment < log.count)[:, None], take(log.params, segment), outcome.params)

    def body(c: _Carry) -> _Carry:
        h, p = get_row(steps.h, c.row), params(c.segment)
        step = take_step(tableau, lambda _, s, u: reverse.rhs(s, u, p), c.t, h, c.u, c.k0, rolled=reverse.compact)
        local = c.row - c.block.first
        kept = c.block._replace(
            t=set_row(c.block.t, local, c.t),
            u=set_row(c.block.u, local, c.u),
            k=None if c.block.k is None else set_row(c.block.k, local, step.k),
        )
        u1 = step.u1
        if steps.theta is not None:
            theta = get_row(steps.theta, c.row)
            u1 = where_lanes(theta < 1, interpolate(tableau, c.u, h, step.k, theta), u1)
        moved = h != 0
        t, u, k0 = c.t + h, where_lanes(moved, u1, c.u), where_lanes(moved, step.k[:, -1], c.k0)
        fired = jnp.sum((log.row == c.row) & used, 0, dtype=np.int32)

        def restart(t, u, k0, segment):
            segment = segment + fired
            here = fired > 0
            t, u = (where_lanes(here, take(x, segment - 1), y) for x, y in ((log.time, t), (log.right, u)))
            return t, u, where_lanes(here, reverse.rhs(t, u, params(segment)), k0), segment

        segment = c.segment
        if used.size:
            t, u, k0, segment = lax.cond(jnp.any(fired > 0), restart, lambda *x: x, t, u, k0, segment)
        return _Carry(c.row + 1, t, u, k0, segment, kept)

    slot = first // steps.stride
    t, u = get_row(steps.t, slot), get_row(steps.u, slot)
    segment = jnp.sum((log.row < first) & used, 0, dtype=np.int32)
    k0 = reverse.rhs(t, u, params(segment))
    last = jnp.maximum(jnp.minimum(first + block_rows(reverse), steps.count) - 1, first)
    empty = Block(first, last, *_empty(reverse, window + padding, slopes))
    return lax.while_loop(lambda c: c.row <= last, body, _Carry(first, t, u, k0, segment, empty)).block
