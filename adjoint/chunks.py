"""The transposed sweep over chunks of recorded steps.

How the steps of a chunk are transposed depends on the system:

- small states of few lanes: their stages and all Jacobians in one batch, which makes each step a small affine map; the sweep
  composes them;
- others: a state VJP for each stage, one after another. Where several steps make a chunk, their stages are recomputed in
  one batch, and the parameter part is one batched VJP; where one step fills it, every stage is linearised once for both.

Slope 0 of a step is slope s of the one before (FSAL): but for the first way its cotangent is carried over, so that a step
costs ``tableau.stages`` VJPs.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..solvers.buffers import get_row, set_row
from ..solvers.record import ALIGNED
from ..solvers.runge_kutta import combine
from .replay import Block
from .reverse import Reverse
from .saves_in_rows import take_saves
from .step_transpose import RowBars, transpose_row
from .transpose import Sweep, Transpose

ENTRIES = 2**11  # numbers in the states of a chunk: where one step has many, a batch of several gains nothing


def chunk_rows(most: int, size: int) -> int:
    """Rows of a chunk where one has ``size`` numbers: a power of two, so that the record is a whole number of them."""
    fits = max(1, min(most, ALIGNED, ENTRIES // max(size, 1)))
    return 2 ** (fits.bit_length() - 1)


class Chunks(Transpose):
    """At most ``chunk`` rows together."""

    def __init__(self, reverse: Reverse, chunk: int):
        super().__init__(reverse)
        # parameters that change at events tie each row to its own set: such rows are taken one by one
        self.chunk = 1 if reverse.system.param_size is not None else chunk_rows(chunk, reverse.args.u0.size)

    def some(self, sweep: Sweep, block: Block) -> Sweep:
        """Transpose the rows ``[low, sweep.row]``."""
        r, size, steps = self.reverse, self.chunk, self.steps
        # the same chunks whether or not there are blocks, which hold a whole number of them
        low = sweep.row - sweep.row % size

        def window(x, start=low) -> Any:
            return None if x is None else lax.dynamic_slice_in_dim(x, start, size, 0, allow_negative_indices=False)

        h, theta = window(steps.h), window(steps.theta)
        t, u, k = (window(x, low - block.first) for x in (block.t, block.u, block.k))
        index = low + jnp.arange(size, dtype=np.int32)
        used = ((index <= sweep.row) & (index < steps.count))[:, None]
        used = used if r.idle is None else used & ~r.idle
        # rows beyond the record hold nothing; stand in a state where the right-hand side is known to be finite
        t, h = jnp.where(used, t, r.args.schedule.t0), jnp.where(used, h, 0.0)
        u = jnp.where(used[..., None], u, r.args.u0)
        k = None if k is None else jnp.where(used[..., None, None], k, 0.0)
        save, ubar, kbar = take_saves(r, sweep.save, low, t, h)
        sweep = sweep._replace(save=save)
        rows = RowBars(h, theta, ubar, kbar)
        if size == 1 and not r.small and r.system.vectorises:
            return self.events(self._row(sweep, jax.tree.map(lambda x: x[0], rows), t[0], u[0]))
        states, times = self._points(t, h, u, k, sweep.p)
        transpose = self._by_jacobians if r.small else self._by_products
        sweep, dmu = transpose(sweep, low, rows, states, times)
        sweep = sweep._replace(mu=r.add(sweep.mu, dmu))
        # where events write parameters, mu must be complete before one is passed
        return self.events(sweep) if size == 1 else sweep

    def _row(self, sweep: Sweep, row: RowBars, t: Array, u: Array) -> Sweep:
        """One row, each stage linearised once for the state and the parameters."""
        r, tableau = self.reverse, self.tableau
        times = [t + row.h * np.asarray(c, t.dtype) for c in tableau.c]
        x, slopes, pullbacks, mu = u, [r.rhs(t, u, sweep.p)], {}, [sweep.mu]
        for q in range(1, tableau.stages + 1):
            x = u + row.h[..., None] * combine(tableau.a[q, :q], slopes)
            slope, pullbacks[q] = r.vjp(lambda th, u_, t_: r.system.rhs(u_, th, t_), (x, times[q]), sweep.p)
            slopes.append(slope)

        def pull(q, v):
            dmu, (du, _) = pullbacks[q](v)
            mu.append(r.add(mu.pop(), dmu))
            return du

        row = row._replace(kbar=row.kbar.at[:, tableau.stages].add(sweep.kbar))
        lam, v = transpose_row(tableau, pull, row, sweep.lam, first=1)
        sweep = sweep._replace(row=sweep.row - 1, lam=lam, kbar=v[0], mu=mu[0])
        if sweep.seen is not None:
            sweep = self.see(sweep, lam + r.state_vjp(v[0], u, sweep.p, t))  # what is pending belongs to the cotangent
        return sweep

    def _by_products(self, sweep: Sweep, low: Array, rows: RowBars, states: Array, times: Array):
        """The rows one after another, with a state VJP for each stage; also what they add to mu."""
        r, s = self.reverse, self.tableau.stages

        def transpose(j, carry):
            sweep, points = carry
            i = sweep.row - low
            at = lambda x: get_row(x, i)  # noqa: E731
            x, tx = at(states), at(times)
            row: RowBars = jax.tree.map(at, rows)
            row = row._replace(kbar=row.kbar.at[:, s].add(sweep.kbar))

            def pull(q, v):
                return r.state_vjp(v, x[:, q], sweep.p, tx[:, q])

            lam, v = transpose_row(self.tableau, pull, row, sweep.lam, first=1)
            points = set_row(points, i, jnp.stack(v[1:], 1))
            sweep = sweep._replace(row=sweep.row - 1, lam=lam, kbar=v[0])
            if sweep.seen is not None:
                sweep = self.see(sweep, lam + pull(0, v[0]))  # what is pending belongs to the cotangent
            return (sweep if self.chunk == 1 else self.events(sweep)), points

        points = jnp.zeros((self.chunk, r.lanes, s, states.shape[-1]), states.dtype)
        p = sweep.p
        sweep, points = lax.fori_loop(0, sweep.row - low + 1, transpose, (sweep, points))
        return sweep, r.pull_params(_flat(points), _flat(states[:, :, 1:]), _flat(times[:, :, 1:]), p)

    def _by_jacobians(self, sweep: Sweep, low: Array, rows: RowBars, states: Array, times: Array):
        """All rows at once as affine maps ``lam -> M lam + m``, then composed; also what they add to mu.

        The slope at the start of a row is pulled back in the same row, so that nothing is pending between rows.
        """
        r, n, size = self.reverse, states.shape[-1], self.chunk
        jacobians, pull_params = r.linearised(_flat(states), _flat(times), sweep.p)  # (C (s+1), B, n, n)
        jacobians = jacobians.reshape(size, -1, *jacobians.shape[1:])

        def pull(q, v):
            # v (n+1, C, B, n): along the unit vectors of lam, and what the saved rows put in
            return jnp.sum(v[..., None] * jacobians[:, q], -2)

        units = jnp.eye(n + 1, n, dtype=states.dtype)[:, None, None]
        saved = jnp.eye(n + 1, dtype=states.dtype)[n][:, None, None, None]
        columns = rows._replace(ubar=saved * rows.ubar, kbar=saved[..., None] * rows.kbar)
        units = jnp.broadcast_to(units, columns.ubar.shape)
        maps, v = transpose_row(self.tableau, pull, columns, units, first=0)

        def compose(j, carry):
            sweep, lams = carry
            i = sweep.row - low
            lams = set_row(lams, i, sweep.lam)
            row = lax.dynamic_index_in_dim(maps, i, 1, False, allow_negative_indices=False)  # (n+1, B, n)
            sweep = sweep._replace(row=sweep.row - 1, lam=_apply(row, sweep.lam))
            sweep = self.see(sweep, sweep.lam)
            return (sweep if size == 1 else self.events(sweep)), lams

        # rows that are not reached keep zeros; their length is zero too
        lams = jnp.zeros((size, r.lanes, n), states.dtype)
        sweep, lams = lax.fori_loop(0, sweep.row - low + 1, compose, (sweep, lams))
        points = _apply(jnp.stack(v, -2), lams[..., None, :])
        return sweep, pull_params(_flat(points))

    def _points(self, t, h, u, k, p) -> tuple[Array, Array]:
        """Stage states ``(C, B, s+1, n)`` and times ``(C, B, s+1)`` of a chunk, the end of the step last."""
        tableau = self.tableau
        times = t[..., None] + h[..., None] * tableau.c.astype(t.dtype)
        states, slopes = [u], []
        for q in range(1, tableau.stages + 1):
            slopes.append(self._slopes(times[..., q - 1], states[-1], p) if k is None else k[:, :, q - 1])
            states.append(u + h[..., None] * combine(tableau.a[q, :q], slopes))
        return jnp.stack(states, 2), times

    def _slopes(self, t: Array, u: Array, p) -> Array:
        return jax.vmap(lambda t_, u_: self.reverse.rhs(t_, u_, p))(t, u)


def _flat(x: Array) -> Array:
    """``(C, B, s, ...)`` to ``(C s, B, ...)``."""
    return jnp.moveaxis(x, 2, 1).reshape(-1, x.shape[1], *x.shape[3:])


def _apply(columns: Array, lam: Array) -> Array:
    """The affine map with columns ``(n+1, ..., n)``, the last one constant, at ``lam (..., n)``."""
    linear = jnp.moveaxis(lam, -1, 0)[..., None] * columns[:-1]
    return jnp.sum(linear, 0) + columns[-1]
