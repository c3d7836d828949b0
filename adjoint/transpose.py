"""The transposed sweep over recorded Runge-Kutta steps.

Saved rows enter the step that holds them, so that they never cost a stop (`step_transpose`). How the steps are transposed
depends on the system:

- light ones, in which all is small: row by row, number by number (`component_rows`);
- compact ones, which XLA compiles to one native function: row by row too (`array_rows`);
- small states of few lanes: the stages of a chunk of steps and all their Jacobians in one batch, which makes each step a
  small affine map; the sweep composes them;
- others: a state VJP for each stage, one after another. Where several steps make a chunk, their stages are recomputed in
  one batch, and the parameter part is one batched VJP; where one step fills it, every stage is linearised once for both.

Slope 0 of a step is slope s of the one before (FSAL): but for the second way its cotangent is carried over, so that a step
costs ``tableau.stages`` VJPs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..solvers.buffers import get_row, put, take, where_lanes
from ..solvers.record import ALIGNED
from ..solvers.runge_kutta import combine
from .array_rows import ArrayRows
from .component_rows import ComponentRows
from .costate_solve import saves_at_start
from .diagnostics import Seen, first_look, info_of_transpose, see_lam
from .jumps import jump_back
from .replay import Block, block_of, recorded, replay
from .reverse import Mu, Reverse
from .saves_in_rows import take_saves
from .sensealg import Costate
from .stage_rows import Rows, StageRows
from .step_transpose import RowBars, transpose_row
from .times import finish_times

ENTRIES = 2**11  # numbers in the states of a chunk: where one step has many, a batch of several gains nothing


class Sweep(NamedTuple):
    """The carry of the backward sweep over rows."""

    row: Array  # (), the next row to transpose
    save: Array  # (B,), saves at and after this index have been taken in
    event: Array  # (B,), events at and after this index have been passed
    lam: Array  # (B, n), cotangent of the state at the start of the row above
    kbar: Array  # (B, n), cotangent of the slope there, not yet pulled back
    mu: Mu
    p: Array | None
    stops: Array  # (K+1, B)
    trouble: Array  # (B,), of events; see `Jumped`
    lost: Array  # (B,), lam was not finite
    seen: Seen | None
    numbers: Any = None  # the part of mu that `ComponentRows` adds up


def chunk_rows(most: int, size: int) -> int:
    """Rows of a chunk where one has ``size`` numbers: a power of two, so that the record is a whole number of them."""
    fits = max(1, min(most, ALIGNED, ENTRIES // max(size, 1)))
    return 2 ** (fits.bit_length() - 1)


class Transpose:
    """The sweep over the rows of one record, at most ``chunk`` of them together."""

    def __init__(self, reverse: Reverse, chunk: int):
        self.reverse, self.tableau = reverse, reverse.tableau
        # parameters that change at events tie each row to its own set: such rows are taken one by one
        alone = reverse.system.param_size is not None
        self.light = None if alone or reverse.system.light is None else ComponentRows(reverse)
        self.one_by_one = self.light or (ArrayRows(reverse) if reverse.compact else None)
        self.chunk = 1 if alone or self.one_by_one else chunk_rows(chunk, reverse.args.u0.size)
        assert reverse.result.steps is not None
        self.steps = reverse.result.steps

    def run(self) -> Costate:
        r = self.reverse
        result, cotangents = r.result, r.cotangents
        stops = jnp.zeros_like(r.args.schedule.stops.T)
        sweep = Sweep(
            self.steps.count,  # an empty row: the first events met are those at the end of the last one
            result.saves.count,
            result.events.count,
            cotangents.end,
            jnp.zeros_like(cotangents.end),
            r.zero_mu(),
            result.outcome.params,
            stops,
            jnp.zeros(r.lanes, np.int32),
            jnp.zeros(r.lanes, bool),
            first_look(r.lanes, r.args.rtol.dtype, r.watch, False),
        )
        if self.light is not None:
            sweep = sweep._replace(numbers=self.light.zero_mu())
        if self.one_by_one is not None:
            sweep = self._events(sweep._replace(row=sweep.row - 1))
        if r.options.slots is None:
            sweep = lax.while_loop(lambda s: s.row >= 0, lambda s: self._some(s, None), sweep)
        else:
            sweep = lax.while_loop(lambda s: s.row >= 0, self._block, sweep)
        # before the last pullback, which no gradient but that of u0 and t0 needs
        lost = r.cotangents.finite & (sweep.lost | not_finite(sweep))
        u0, t0 = r.args.u0, r.args.schedule.t0
        sweep = self._resolve(sweep, u0, t0, sweep.kbar, jnp.ones(r.lanes, bool))
        if self.light is not None:
            sweep = sweep._replace(mu=r.add(sweep.mu, self.light.finish_mu(sweep.numbers)))
        lam = sweep.lam + saves_at_start(r)
        times = finish_times(r, lam, sweep.stops)
        info = info_of_transpose(r, self._see(sweep, lam).seen, lam, sweep.trouble)
        return Costate(lam, sweep.mu, times, (sweep.trouble > 0) | lost, sweep.trouble, info)

    def _see(self, sweep: Sweep, lam: Array, on: Any = True) -> Sweep:
        if sweep.seen is None:
            return sweep
        return sweep._replace(seen=see_lam(sweep.seen, lam[:, : self.reverse.components], jnp.asarray(on)))

    # -- events

    def _event_here(self, row: Array, event: Array) -> Array:
        """The lanes on which the event before number ``event (B,)`` is at the end of row ``row``."""
        log = self.reverse.result.events
        if log.time.shape[0] == 0:
            return jnp.zeros_like(event, bool)
        return (event > 0) & (take(log.row, event - 1) == row)

    def _events(self, sweep: Sweep) -> Sweep:
        """Pass all events at the end of row ``sweep.row`` (-1: at the start)."""
        log = self.reverse.result.events
        if log.time.shape[0] == 0:
            return sweep

        def here(event):
            return self._event_here(sweep.row, event)

        def back(s: Sweep) -> Sweep:
            on, before = here(s.event), not_finite(s)
            right, t = take(log.right, s.event - 1), take(log.time, s.event - 1)
            u0, t0 = self.reverse.args.u0, self.reverse.args.schedule.t0
            right, t = where_lanes(on, right, u0), jnp.where(on, t, t0)
            s = self._resolve(s, right, t, s.kbar, on)
            jumped = jump_back(self.reverse, s.event - 1, on, s.lam, s.mu, s.p)
            stops = put(s.stops, jumped.stop, jumped.sigma, jumped.stop >= 0)
            s = s._replace(
                event=s.event - on,
                lam=jumped.lam,
                mu=jumped.mu,
                p=jumped.p,
                stops=stops,
                trouble=jnp.maximum(s.trouble, jumped.trouble),
                lost=s.lost | (on & before),  # an affect that forgets the state would hide it
            )
            return self._see(s, s.lam, on)

        return lax.while_loop(lambda s: jnp.any(here(s.event)), back, sweep)

    def _resolve(self, sweep: Sweep, u: Array, t: Array, kbar: Array, on: Array) -> Sweep:
        """Pull the pending slope cotangent back through the right-hand side at ``(t, u)``."""
        r = self.reverse
        if r.small:
            return sweep  # nothing is pending
        bar = where_lanes(on, kbar, jnp.zeros_like(kbar))
        lam = sweep.lam + r.state_vjp(bar, u, sweep.p, t)
        mu = r.add(sweep.mu, r.pull_params(bar[None], u[None], t[None], sweep.p))
        return sweep._replace(lam=lam, mu=mu, kbar=where_lanes(on, jnp.zeros_like(kbar), kbar))

    # -- steps

    def _block(self, sweep: Sweep) -> Sweep:
        """Transpose the rows of the block that holds ``sweep.row``."""
        r = self.reverse
        assert self.steps.stride is not None
        j, window = block_of(r, sweep.row), r.options.window
        block = lax.cond(
            self.steps.stride == 1,
            lambda: recorded(r, j, window, self.chunk),
            lambda: replay(r, j, window, self.chunk, slopes=False),
        )
        return lax.while_loop(lambda s: s.row >= block.first, lambda s: self._some(s, block), sweep)

    def _some(self, sweep: Sweep, block: Block | None) -> Sweep:
        """Transpose some rows from ``sweep.row`` downwards, and pass the events that end the row below them."""
        return self._chunk(sweep, block) if self.one_by_one is None else self._stretch(self.one_by_one, sweep, block)

    def _stretch(self, one_by_one: StageRows, sweep: Sweep, block: Block | None) -> Sweep:
        """Transpose the rows down to the next event."""
        first, states = (0, self.steps.u) if block is None else (block.first, block.u)

        def clear(c: Rows) -> Array:
            return (c.row >= first) & ~jnp.any(self._event_here(c.row, sweep.event))

        def transpose(c: Rows) -> Rows:
            return one_by_one.row(c, get_row(states, c.row - first), sweep.p)

        rows = lax.while_loop(clear, transpose, one_by_one.first(sweep))
        sweep = sweep._replace(row=rows.row, save=rows.save, lam=rows.lam.T, kbar=rows.kbar.T, seen=rows.seen)
        return self._events(one_by_one.end(sweep, rows.mu))

    def _chunk(self, sweep: Sweep, block: Block | None) -> Sweep:
        """Transpose the rows ``[low, sweep.row]``."""
        r, size, steps = self.reverse, self.chunk, self.steps
        first = 0 if block is None else block.first
        # the same chunks whether or not there are blocks, which hold a whole number of them
        low = sweep.row - sweep.row % size

        def window(x, start=low) -> Any:
            return None if x is None else lax.dynamic_slice_in_dim(x, start, size, 0)

        t, h, theta, k = map(window, (steps.t, steps.h, steps.theta, steps.k))
        u = window(steps.u) if block is None else window(block.u, low - first)
        index = low + jnp.arange(size, dtype=np.int32)
        used = ((index <= sweep.row) & (index < steps.count))[:, None]
        # rows beyond the record hold nothing; stand in a state where the right-hand side is known to be finite
        t, h = jnp.where(used, t, r.args.schedule.t0), jnp.where(used, h, 0.0)
        u = jnp.where(used[..., None], u, r.args.u0)
        k = None if k is None else jnp.where(used[..., None, None], k, 0.0)
        save, ubar, kbar = take_saves(r, sweep.save, low, t, h)
        sweep = sweep._replace(save=save)
        rows = RowBars(h, theta, ubar, kbar)
        if size == 1 and not r.small and r.system.vectorises:
            return self._events(self._row(sweep, jax.tree.map(lambda x: x[0], rows), t[0], u[0]))
        states, times = self._points(t, h, u, k, sweep.p)
        transpose = self._by_jacobians if r.small else self._by_products
        sweep, points, first = transpose(sweep, low, rows, states, times)
        dmu = r.pull_params(_flat(points), _flat(states[:, :, first:]), _flat(times[:, :, first:]), sweep.p)
        sweep = sweep._replace(mu=r.add(sweep.mu, dmu))
        # where events write parameters, mu must be complete before one is passed
        return self._events(sweep) if size == 1 else sweep

    def _row(self, sweep: Sweep, row: RowBars, t: Array, u: Array) -> Sweep:
        """One row, each stage linearised once for the state and the parameters."""
        r, tableau = self.reverse, self.tableau
        times = [t + row.h * np.asarray(c, t.dtype) for c in tableau.c]
        x, slopes, pullbacks, mu = u, [r.rhs(t, u, sweep.p)], {}, [sweep.mu]
        for q in range(1, tableau.stages + 1):
            # see transpose_row for the barrier
            x = lax.optimization_barrier(u + row.h[..., None] * combine(tableau.a[q, :q], slopes))
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
            sweep = self._see(sweep, lam + r.state_vjp(v[0], u, sweep.p, t))  # what is pending belongs to the cotangent
        return sweep

    def _by_products(self, sweep: Sweep, low: Array, rows: RowBars, states: Array, times: Array):
        """The rows one after another, with a state VJP for each stage; also the slope cotangents from stage 1 on."""
        r, s = self.reverse, self.tableau.stages

        def transpose(j, carry):
            sweep, points = carry
            i = sweep.row - low
            at = lambda x: lax.dynamic_index_in_dim(x, i, 0, keepdims=False)  # noqa: E731
            x, tx = at(states), at(times)
            row: RowBars = jax.tree.map(at, rows)
            row = row._replace(kbar=row.kbar.at[:, s].add(sweep.kbar))

            def pull(q, v):
                return r.state_vjp(v, x[:, q], sweep.p, tx[:, q])

            lam, v = transpose_row(self.tableau, pull, row, sweep.lam, first=1)
            points = lax.dynamic_update_index_in_dim(points, jnp.stack(v[1:], 1), i, 0)
            sweep = sweep._replace(row=sweep.row - 1, lam=lam, kbar=v[0])
            if sweep.seen is not None:
                sweep = self._see(sweep, lam + pull(0, v[0]))  # what is pending belongs to the cotangent
            return (sweep if self.chunk == 1 else self._events(sweep)), points

        points = jnp.zeros((self.chunk, r.lanes, s, states.shape[-1]), states.dtype)
        return *lax.fori_loop(0, sweep.row - low + 1, transpose, (sweep, points)), 1

    def _by_jacobians(self, sweep: Sweep, low: Array, rows: RowBars, states: Array, times: Array):
        """All rows at once as affine maps ``lam -> M lam + m``, then composed; also the cotangents of all slopes.

        The slope at the start of a row is pulled back in the same row, so that nothing is pending between rows.
        """
        r, n, size = self.reverse, states.shape[-1], self.chunk
        jacobians = r.jacobians(_flat(states), _flat(times), sweep.p)  # (C (s+1), B, n, n)
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
            lams = lax.dynamic_update_index_in_dim(lams, sweep.lam, i, 0)
            row = lax.dynamic_index_in_dim(maps, i, 1, keepdims=False)  # (n+1, B, n)
            sweep = sweep._replace(row=sweep.row - 1, lam=_apply(row, sweep.lam))
            sweep = self._see(sweep, sweep.lam)
            return (sweep if size == 1 else self._events(sweep)), lams

        # rows that are not reached keep zeros; their length is zero too
        lams = jnp.zeros((size, r.lanes, n), states.dtype)
        sweep, lams = lax.fori_loop(0, sweep.row - low + 1, compose, (sweep, lams))
        points = _apply(jnp.stack(v, -2), lams[..., None, :])
        return sweep, points, 0

    def _points(self, t, h, u, k, p) -> tuple[Array, Array]:
        """Stage states ``(C, B, s+1, n)`` and times ``(C, B, s+1)`` of a chunk, the end of the step last."""
        tableau = self.tableau
        times = t[..., None] + h[..., None] * tableau.c.astype(t.dtype)
        states, slopes = [u], []
        for q in range(1, tableau.stages + 1):
            slopes.append(self._slopes(times[..., q - 1], states[-1], p) if k is None else k[:, :, q - 1])
            # see transpose_row for the barrier
            states.append(lax.optimization_barrier(u + h[..., None] * combine(tableau.a[q, :q], slopes)))
        return jnp.stack(states, 2), times

    def _slopes(self, t: Array, u: Array, p) -> Array:
        return jax.vmap(lambda t_, u_: self.reverse.rhs(t_, u_, p))(t, u)


def not_finite(sweep: Sweep) -> Array:
    """Lanes whose lam, or what is still to be pulled back to it, is not finite: mu need not show it."""
    return ~jnp.all(jnp.isfinite(sweep.lam) & jnp.isfinite(sweep.kbar), -1)


def _flat(x: Array) -> Array:
    """``(C, B, s, ...)`` to ``(C s, B, ...)``."""
    return jnp.moveaxis(x, 2, 1).reshape(-1, x.shape[1], *x.shape[3:])


def _apply(columns: Array, lam: Array) -> Array:
    """The affine map with columns ``(n+1, ..., n)``, the last one constant, at ``lam (..., n)``."""
    linear = jnp.moveaxis(lam, -1, 0)[..., None] * columns[:-1]
    return jnp.sum(linear, 0) + columns[-1]
