"""Taking the recorded steps again, from a checkpoint."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..solvers.buffers import get_row, set_row, take, where_lanes
from ..solvers.runge_kutta import interpolate, take_step
from .reverse import Reverse


class Block(NamedTuple):
    """States at the start of the rows ``first, first + 1, ...``, and their slopes where they are asked for."""

    first: Array  # ()
    last: Array  # ()
    u: Array  # (W, B, n)
    k: Array | None  # (W, B, s+1, n)


class _Carry(NamedTuple):
    row: Array
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
    """`replay` where all states were kept: they are read."""
    steps, least = reverse.result.steps, reverse.options.block
    assert steps is not None
    first = block * least
    last = jnp.maximum(jnp.minimum(first + least, steps.count) - 1, first)
    rows = lax.dynamic_slice_in_dim(steps.u, first, min(least, steps.u.shape[0]), 0, allow_negative_indices=False)
    states = jnp.broadcast_to(reverse.args.u0, (window + padding, *rows.shape[1:]))
    return Block(first, last, lax.dynamic_update_slice_in_dim(states, rows, 0, 0), None)


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
        t, h, p = get_row(steps.t, c.row), get_row(steps.h, c.row), params(c.segment)
        step = take_step(tableau, lambda _, s, u: reverse.rhs(s, u, p), t, h, c.u, c.k0, rolled=reverse.compact)
        local = c.row - c.block.first
        kept = Block(
            c.block.first,
            c.block.last,
            set_row(c.block.u, local, c.u),
            None if c.block.k is None else set_row(c.block.k, local, step.k),
        )
        u1 = step.u1
        if steps.theta is not None:
            theta = get_row(steps.theta, c.row)
            u1 = where_lanes(theta < 1, interpolate(tableau, c.u, h, step.k, theta), u1)
        moved = h != 0
        u, k0 = where_lanes(moved, u1, c.u), where_lanes(moved, step.k[:, -1], c.k0)
        fired = jnp.sum((log.row == c.row) & used, 0, dtype=np.int32)

        def restart(u, k0, segment):
            segment = segment + fired
            u = where_lanes(fired > 0, take(log.right, segment - 1), u)
            slope = reverse.rhs(take(log.time, segment - 1), u, params(segment))
            return u, where_lanes(fired > 0, slope, k0), segment

        segment = c.segment
        if used.size:
            u, k0, segment = lax.cond(jnp.any(fired > 0), restart, lambda *x: x, u, k0, segment)
        return _Carry(c.row + 1, u, k0, segment, kept)

    u = get_row(steps.u, first // steps.stride)
    segment = jnp.sum((log.row < first) & used, 0, dtype=np.int32)
    k0 = reverse.rhs(get_row(steps.t, first), u, params(segment))
    # rows that are not replayed stand where the right-hand side is known to be finite
    states = jnp.broadcast_to(reverse.args.u0, (window + padding, *u.shape))
    ks = jnp.zeros((window + padding, u.shape[0], tableau.stages + 1, u.shape[1]), u.dtype) if slopes else None
    last = jnp.maximum(jnp.minimum(first + block_rows(reverse), steps.count) - 1, first)
    carry = _Carry(first, u, k0, segment, Block(first, last, states, ks))
    return lax.while_loop(lambda c: c.row <= last, body, carry).block
