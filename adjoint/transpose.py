"""The transposed sweep over recorded Runge-Kutta steps: what does not depend on how a step is transposed.

Saved rows enter the step that holds them, so that they never cost a stop (`step_transpose`). Steps are transposed row by row
(`stretches`) or in chunks (`chunks`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..solvers.buffers import put, take, where_lanes
from .costate_solve import saves_at_start
from .diagnostics import Seen, first_look, info_of_transpose, see_lam
from .jumps import jump_back
from .replay import Block, block_of, recorded, replay
from .reverse import Mu, Reverse
from .sensealg import Costate
from .times import finish_times


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


class Transpose:
    """The sweep over the rows of one record, at most ``chunk`` of them together; a subclass says how."""

    chunk = 1

    def __init__(self, reverse: Reverse):
        self.reverse, self.tableau = reverse, reverse.tableau
        assert reverse.result.steps is not None
        self.steps = reverse.result.steps

    def begin(self, sweep: Sweep) -> Sweep:
        """The sweep before the first row, from one at an empty row beyond the last."""
        return sweep

    def some(self, sweep: Sweep, block: Block) -> Sweep:
        """Transpose some rows of ``block`` from ``sweep.row`` downwards, and pass the events that end the row below them."""
        raise NotImplementedError

    def end(self, sweep: Sweep) -> Sweep:
        """The sweep with all of mu, after the last row."""
        return sweep

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
        sweep = self.begin(sweep)
        if r.options.slots is None:
            every = Block(0, self.steps.count, self.steps.t, self.steps.u, self.steps.k)
            sweep = lax.while_loop(lambda s: s.row >= 0, lambda s: self.some(s, every), sweep)
        else:
            sweep = lax.while_loop(lambda s: s.row >= 0, self._block, sweep)
        # before the last pullback, which no gradient but that of u0 and t0 needs
        lost = r.cotangents.finite & (sweep.lost | not_finite(sweep))
        u0, t0 = r.args.u0, r.args.schedule.t0
        sweep = self._resolve(sweep, u0, t0, sweep.kbar, jnp.ones(r.lanes, bool))
        sweep = self.end(sweep)
        lam = sweep.lam + saves_at_start(r)
        times = finish_times(r, lam, sweep.stops)
        info = info_of_transpose(r, self.see(sweep, lam).seen, lam, sweep.trouble)
        return Costate(lam, sweep.mu, times, (sweep.trouble > 0) | lost, sweep.trouble, info)

    def see(self, sweep: Sweep, lam: Array, on: Any = True) -> Sweep:
        if sweep.seen is None:
            return sweep
        return sweep._replace(seen=see_lam(sweep.seen, lam[:, : self.reverse.components], jnp.asarray(on)))

    # -- events

    def event_here(self, row: Array, event: Array) -> Array:
        """The lanes on which the event before number ``event (B,)`` is at the end of row ``row``."""
        log = self.reverse.result.events
        if log.time.shape[0] == 0:
            return jnp.zeros_like(event, bool)
        return (event > 0) & (take(log.row, event - 1) == row)

    def events(self, sweep: Sweep) -> Sweep:
        """Pass all events at the end of row ``sweep.row`` (-1: at the start)."""
        log = self.reverse.result.events
        if log.time.shape[0] == 0:
            return sweep

        def here(event):
            return self.event_here(sweep.row, event)

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
            return self.see(s, s.lam, on)

        return lax.while_loop(lambda s: jnp.any(here(s.event)), back, sweep)

    def _resolve(self, sweep: Sweep, u: Array, t: Array, kbar: Array, on: Array) -> Sweep:
        """Pull the pending slope cotangent back through the right-hand side at ``(t, u)``."""
        r = self.reverse
        if r.small:
            return sweep  # nothing is pending
        bar = where_lanes(on, kbar, jnp.zeros_like(kbar))
        _, back = r.vjp(lambda th, u_, t_: r.system.rhs(u_, th, t_), (u, t), sweep.p)
        mu, (du, _) = back(bar)
        mu = jax.tree.map(jnp.add, sweep.mu, mu)
        return sweep._replace(lam=sweep.lam + du, mu=mu, kbar=where_lanes(on, jnp.zeros_like(kbar), kbar))

    # -- steps

    def _block(self, sweep: Sweep) -> Sweep:
        """Transpose the rows of the block that holds ``sweep.row``."""
        r = self.reverse
        assert self.steps.stride is not None
        j, window = block_of(r, sweep.row), r.options.window
        block = lax.cond(
            self.steps.stride == 1,
            lambda: recorded(r, j, window, self.chunk),
            lambda: replay(r, j, window, self.chunk, slopes=self.steps.k is not None),
        )
        return lax.while_loop(lambda s: s.row >= block.first, lambda s: self.some(s, block), sweep)


def not_finite(sweep: Sweep) -> Array:
    """Lanes whose lam, or what is still to be pulled back to it, is not finite: mu need not show it."""
    return ~jnp.all(jnp.isfinite(sweep.lam) & jnp.isfinite(sweep.kbar), -1)
