"""The forward state at any time, from the record."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..solvers.buffers import take
from ..solvers.runge_kutta import interpolate
from .replay import Block
from .reverse import Reverse

NEAR = 16  # rows of the record that a search from a known row looks at first


class DenseForward:
    """``u(t)`` on every lane, within the segment that ends at a given event.

    A segment is named by the number of events before it, so that at an event both limits can be had: the left one in
    the segment that ends there, the right one in the next. Searches go backwards from a row that is known to lie at or
    after the time. With a ``block``, times lie in its rows, and states and slopes are the block's.
    """

    def __init__(self, reverse: Reverse, block: Block | None = None):
        assert reverse.result.steps is not None
        self.reverse, self.steps, self.block = reverse, reverse.result.steps, block
        rows = self.steps if block is None else block
        self.first: Array | int = 0 if block is None else block.first
        self.times, self.states, self.slopes = rows.t, rows.u, rows.k
        schedule = reverse.args.schedule
        self.direction = jnp.where(schedule.t1 >= schedule.t0, 1, -1).astype(schedule.t0.dtype)
        rows = jnp.arange(self.steps.h.shape[0], dtype=np.int32)[:, None]
        self.last = jnp.max(jnp.where(self.steps.h != 0, rows, 0), 0)

    def bounds(self, segment: Array) -> tuple[Array, Array]:
        """First and last row of a segment, ``(B,)`` each."""
        log = self.reverse.result.events
        low, high = jnp.zeros_like(segment), self.last
        if log.time.shape[0]:
            low = jnp.where(segment > 0, take(log.row, segment - 1) + 1, 0)
            high = jnp.where(segment < log.count, take(log.row, segment), self.last)
            low, high = jnp.minimum(low, self.last), jnp.clip(high, 0, self.last)
        if self.block is None:
            return low, high
        first, last = self.block.first, self.block.last
        return jnp.clip(low, first, last), jnp.clip(high, first, last)

    def rows(self, t: Array, segment: Array, hint: Array) -> Array:
        """For times ``t (X, B)``, none after the end of row ``hint (B,)``, the rows of the segment that hold them."""
        if self.reverse.compact:
            return self._one_by_one(t, segment, hint)
        row, low, missed = self._near(t, segment, hint)
        return lax.cond(jnp.any(missed), self._bisect, lambda t, row, low: row, t, row, low)

    def _one_by_one(self, t: Array, segment: Array, hint: Array) -> Array:
        """`rows` by going back from ``hint``: in a kernel that is the fastest way, and the shortest to compile."""
        low, high = self.bounds(segment)

        def later(row: Array) -> Array:
            start = jax.vmap(self._start)(row)
            return (row > low) & (self.direction * start > self.direction * t)

        last = jnp.broadcast_to(jnp.maximum(jnp.minimum(high, hint), low), t.shape)
        return lax.while_loop(lambda row: jnp.any(later(row)), lambda row: row - later(row), last)

    def _near(self, t: Array, segment: Array, hint: Array) -> tuple[Array, Array, Array]:
        """`rows` by a look at the last ones before ``hint``; the first of the segment; and which of them were missed."""
        low, high = self.bounds(segment)
        high = jnp.maximum(jnp.minimum(high, hint), low)
        size = self.times.shape[0]
        width = min(NEAR, size)
        first = self.first + jnp.clip(high - self.first - width + 1, 0, size - width)
        index = first[None] + jnp.arange(width, dtype=np.int32)[:, None]  # (W, B)
        after = self.direction * self._slice(first, width) > (self.direction * t)[:, None]
        behind = jnp.sum(after & ((index > low) & (index <= high))[None], 1, dtype=np.int32)
        row = high - behind
        # all rows that were looked at start after the time, and there are more before them
        return row, low, (row < first) & (row >= low)

    def _bisect(self, t: Array, row: Array, low: Array) -> Array:
        """`rows`, from ones that are not before them."""

        def halve(_, ends):
            low, high = ends
            middle = (low + high + 1) // 2
            before = self.direction * jax.vmap(self._start)(middle) <= self.direction * t
            return jnp.where(before, middle, low), jnp.where(before, high, middle - 1)

        ends = (jnp.broadcast_to(low, row.shape), jnp.maximum(row, low))
        return lax.fori_loop(0, int(self.times.shape[0]).bit_length(), halve, ends)[0]

    def _start(self, row: Array) -> Array:
        """Start times of rows ``(B,)``."""
        return take(self.times, row - self.first)

    def _slice(self, first: Array, width: int) -> Array:
        """Start times of the rows ``first, ..., first + width - 1`` of each lane, ``(W, B)``."""
        if self.reverse.lanes == 1:
            at = first[0] - self.first
            return lax.dynamic_slice_in_dim(self.times, at, width, 0, allow_negative_indices=False)
        return jax.vmap(lambda i: self._start(first + i))(jnp.arange(width, dtype=np.int32))

    def at(self, t: Array, row: Array) -> Array:
        """``u(t)`` for times ``(X, B)`` that lie in the rows ``(X, B)``: ``(X, B, n)``."""
        assert self.slopes is not None
        fetch = lambda x, rows: jax.vmap(lambda i: take(x, i))(rows)  # noqa: E731
        start, u, k = (fetch(x, row - self.first) for x in (self.times, self.states, self.slopes))
        h = fetch(self.steps.h, row)
        some = h != 0
        theta = jnp.where(some, (t - start) / jnp.where(some, h, 1.0), 0.0)
        return interpolate(self.reverse.tableau, u, h, k, jnp.clip(theta, 0.0, 1.0))

    def __call__(self, t: Array, segment: Array, hint: Array) -> Array:
        """``u(t)`` for times ``(X, B)``: ``(X, B, n)``."""
        return self.at(t, self.rows(t, segment, hint))

    def many(self, t: Array, segment: Array, hint: Array) -> Array:
        """``u(t)`` for times ``(W, X, B)`` with segments and hints ``(W, B)``: ``(W, X, B, n)``."""
        if self.reverse.compact:
            return jnp.stack([self(*x) for x in zip(t, segment, hint, strict=True)])  # of one step
        row, low, missed = jax.vmap(self._near)(t, segment, hint)
        # a branch that is mapped would be taken always
        row = lax.cond(jnp.any(missed), jax.vmap(self._bisect), lambda t, row, low: row, t, row, low)
        return jax.vmap(self.at)(t, row)
