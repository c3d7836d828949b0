"""The forward state at any time, from the record."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..solvers.buffers import take
from ..solvers.runge_kutta import interpolate
from .reverse import Reverse

COMPARE_ALL = 2**16  # entries of the record's time table up to which a search compares them all


class DenseForward:
    """``u(t)`` on every lane, within the segment that ends at a given event.

    A segment is named by the number of events before it, so that at an event both limits can be had: the left one in
    the segment that ends there, the right one in the next.
    """

    def __init__(self, reverse: Reverse):
        assert reverse.result.steps is not None and reverse.result.steps.k is not None
        self.reverse, self.steps, self.slopes = reverse, reverse.result.steps, reverse.result.steps.k
        schedule = reverse.args.schedule
        self.direction = jnp.where(schedule.t1 >= schedule.t0, 1, -1).astype(schedule.t0.dtype)
        rows = jnp.arange(self.steps.h.shape[0], dtype=np.int32)[:, None]
        self.last = jnp.max(jnp.where(self.steps.h != 0, rows, 0), 0)

    def bounds(self, segment: Array) -> tuple[Array, Array]:
        """First and last row of a segment, ``(B,)`` each."""
        log = self.reverse.result.events
        if log.time.shape[0] == 0:
            return jnp.zeros_like(segment), self.last
        low = jnp.where(segment > 0, take(log.row, segment - 1) + 1, 0)
        high = jnp.where(segment < log.count, take(log.row, segment), self.last)
        return jnp.minimum(low, self.last), jnp.clip(high, 0, self.last)

    def row(self, t: Array, segment: Array) -> Array:
        """The last row of the segment that starts at or before ``t``.

        Few rows are compared all at once, which is one fused pass; many are bisected.
        """
        low, high = self.bounds(segment)
        target, times = self.direction * t, self.steps.t
        if times.size <= COMPARE_ALL:
            rows = jnp.arange(times.shape[0], dtype=np.int32)[:, None]
            inside = (rows > low) & (rows <= high) & (self.direction * times <= target)
            return low + jnp.sum(inside, 0, dtype=np.int32)

        def halve(_, ends):
            low, high = ends
            middle = (low + high + 1) // 2
            before = self.direction * take(times, middle) <= target
            return jnp.where(before, middle, low), jnp.where(before, high, middle - 1)

        low, high = lax.fori_loop(0, int(times.shape[0]).bit_length(), halve, (low, jnp.maximum(low, high)))
        return low

    def __call__(self, t: Array, segment: Array) -> Array:
        """``u(t)``, ``(B, n)``."""
        row = self.row(t, segment)
        start, h = take(self.steps.t, row), take(self.steps.h, row)
        some = h != 0
        theta = jnp.where(some, (t - start) / jnp.where(some, h, 1.0), 0.0)
        tableau = self.reverse.tableau
        return interpolate(
            tableau, take(self.steps.u, row), h, take(self.slopes, row), jnp.clip(theta, 0.0, 1.0)
        )
