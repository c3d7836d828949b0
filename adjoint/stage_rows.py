"""The transpose of Runge-Kutta steps one by one, their stages a loop.

Numbers of a kind stand together with the lanes innermost: states and slopes are ``(n, B)``, those of all stages
``(s+1, n, B)``. Stages are a loop: its body is little code, where a row of unrolled ones would be compiled stage by stage,
and computed again for every number that comes out.

A row is that of `step_transpose`; the cotangent of its first slope is handed to the row before, whose last slope it is
(FSAL). What enters inside the step does so through its continuous extension ``u + h sum_j theta^j sum_q d_qj k_q``: a
cotangent at theta has the moments ``theta^j``.

How the right-hand side is evaluated is told by a subclass: number by number (`component_rows`), or as it stands.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..solvers.buffers import get_row, set_row, take
from .diagnostics import Seen, see_lam
from .replay import Block
from .reverse import Reverse

Parts = tuple[Array, ...]  # numbers, (B,) each


class Inside(NamedTuple):
    """Cotangents that enter a row through its continuous extension; zero unless ``busy``."""

    busy: Array  # ()
    kbar: Array  # (s+1, n, B), of its slopes
    ubar: Array  # (n, B), of the state at its start


class Rows(NamedTuple):
    """The carry of the sweep over rows without events."""

    row: Array
    save: Array  # (B,)
    lam: Array  # (n, B)
    kbar: Array  # (n, B)
    mu: Any  # cotangent of the parameters, in the form of the subclass
    seen: Seen | None
    inside: Inside
    work: tuple[Array, Array, Array]  # what the stages of the row above left; filled anew before it is read


class StageRows:
    """Transposes the rows of a record one by one."""

    def __init__(self, reverse: Reverse):
        self.reverse, self.tableau = reverse, reverse.tableau
        assert reverse.result.steps is not None
        self.steps = reverse.result.steps
        real = reverse.system.time_dtype
        self.a, self.dense, self.c = (jnp.asarray(x, real) for x in (self.tableau.a, self.tableau.dense, self.tableau.c))

    # -- what a subclass says: ``t (B,)``, ``x, v (n, B)``, ``p`` the packed parameters where events write them

    def slope(self, x: Array, t: Array, p: Array | None) -> Array | Parts:
        """The right-hand side."""
        raise NotImplementedError

    def pull(self, v: Array, x: Array, t: Array, p: Array | None) -> tuple[Array | Parts, Any]:
        """``v' df/du``, and ``v' df/dp`` in the form in which `Rows` carries it."""
        raise NotImplementedError

    def prepare(self, sweep: Any) -> Any:
        """The sweep before its first row."""
        return sweep

    def begin(self, sweep: Any) -> Any:
        """The cotangent of the parameters that a sweep carries, in that form."""
        return sweep.mu

    def end(self, sweep: Any, mu: Any) -> Any:
        """The sweep with that cotangent."""
        return sweep._replace(mu=mu)

    def complete(self, sweep: Any) -> Any:
        """The sweep after its last row, with all of mu in its own form."""
        return sweep

    # -- rows

    def first(self, sweep: Any) -> Rows:
        """The carry at ``sweep.row``, from arrays with lanes in front."""
        stages = jnp.zeros((self.tableau.stages + 1, *sweep.lam.T.shape), sweep.lam.dtype)
        inside = Inside(jnp.zeros((), bool), stages, jnp.zeros_like(sweep.lam.T))
        work = stages, stages, stages
        return Rows(sweep.row, sweep.save, sweep.lam.T, sweep.kbar.T, self.begin(sweep), sweep.seen, inside, work)

    def row(self, c: Rows, block: Block, p: Array | None) -> Rows:
        """Transpose the row ``c.row`` of ``block``."""
        r, s = self.reverse, self.tableau.stages
        here = lambda x: get_row(x, c.row - block.first)  # noqa: E731
        t, h = here(block.t), get_row(self.steps.h, c.row)
        u, (slopes, states, pulled) = here(block.u).T, c.work
        if r.idle is not None:
            # they stand still where the right-hand side is known to be finite
            t, h = jnp.where(r.idle, r.args.schedule.t0, t), jnp.where(r.idle, 0, h)
            u = jnp.where(r.idle, r.args.u0.T, u)
        save, lam, inside = self._inside(c, t, h)

        def state(q, carry):
            return u + h * weighted(self.a[q], carry[0])

        def evaluate(q, x, carry):
            slopes, states = carry
            return put(slopes, q, self.slope(x, t + h * self.c[q], p)), set_row(states, q, x)

        if block.k is None:
            # the slope at the end is not needed
            (slopes, states), end = self.chain(state, evaluate, (slopes, states))
            states = set_row(states, jnp.asarray(s), end)
        else:
            recorded = jnp.moveaxis(here(block.k), 0, -1)
            recorded = recorded if r.idle is None else jnp.where(r.idle, 0, recorded)
            states = u + h * jnp.tensordot(self.a.astype(u.dtype), recorded, 1, precision=lax.Precision.HIGHEST)

        def into(i, carry):
            q = s - i
            bar = get_row(inside.kbar, q) + h * (weighted(self.a[:, q], carry[0]) + self.a[s, q].astype(lam.dtype) * lam)
            return bar + jnp.where(q == s, c.kbar, 0)

        def pull(i, v, carry):
            (pulled, mu), q = carry, s - i
            w, dmu = self.pull(v, get_row(states, q), t + h * self.c[q], p)
            return put(pulled, q, w), jax.tree.map(jnp.add, mu, dmu)

        (pulled, mu), kbar = self.chain(into, pull, (pulled, c.mu))
        lam = inside.ubar + lam + jnp.sum(pulled[1:], 0)
        seen = c.seen
        if seen is not None:
            # what is pending belongs to the cotangent
            whole = jnp.stack(list(self.pull(kbar, u, t, p)[0]), 1) + lam.T
            seen = see_lam(seen, whole[:, : r.components], jnp.asarray(True))
        return Rows(c.row - 1, save, lam, kbar, mu, seen, inside, (slopes, states, pulled))

    def chain(self, at: Callable, visit: Callable, carry: tuple) -> tuple[tuple, Array]:
        """``carry = visit(i, at(i, carry), carry)`` for every stage i, and what is at the end of them.

        In a kernel each is computed with the visit before, and carried: XLA would fuse it into all that read it, and compute
        it as many times. Elsewhere that costs an operation more.
        """
        s = self.tableau.stages
        if not (self.reverse.compact or self.reverse.context.tiled):
            carry = lax.fori_loop(0, s, lambda i, c: visit(i, at(i, c), c), carry)
            return carry, at(jnp.asarray(s), carry)

        def body(i, pair):
            carry = visit(i, pair[1], pair[0])
            return carry, at(i + 1, carry)

        return lax.fori_loop(0, s, body, (carry, at(jnp.asarray(0), carry)))

    def _inside(self, c: Rows, t: Array, h: Array) -> tuple[Array, Array, Inside]:
        """What enters row ``c.row`` other than at its end, and the cotangent of its end."""
        saves, theta, lam = self.reverse.result.saves, self.steps.theta, c.lam
        at_end = jnp.ones_like(t) if theta is None else get_row(theta, c.row)
        cut = at_end < 1

        def remaining(save):
            return (save > 0) & (take(saves.row, save - 1) >= c.row)

        def take_in(carry):
            save, moments = carry
            on, some = remaining(save), h != 0
            at = jnp.where(some, (take(saves.t, save - 1) - t) / jnp.where(some, h, 1.0), 1.0)
            bar = jnp.where(on, take(self.reverse.cotangents.saves, save - 1).T, 0)
            return save - on, moments + powers(jnp.clip(at, 0.0, 1.0), moments) * bar

        def collect(save):
            moments = jnp.zeros((self.dense.shape[1] + 1, *lam.shape), lam.dtype)
            if theta is not None:
                moments = moments + powers(at_end, moments) * jnp.where(cut, lam, 0)
            if saves.row.shape[0]:
                save, moments = lax.while_loop(lambda x: jnp.any(remaining(x[0])), take_in, (save, moments))
            kbar = h * jnp.tensordot(self.dense.astype(lam.dtype), moments[1:], 1, precision=lax.Precision.HIGHEST)
            return save, kbar, moments[0]

        busy = jnp.any(cut)
        if saves.row.shape[0]:
            busy = busy | jnp.any(remaining(c.save))
        # where nothing enters, nor did in the row above, zeros are left as they are
        keep = lambda save: (save, c.inside.kbar, c.inside.ubar)  # noqa: E731
        save, kbar, ubar = lax.cond(busy | c.inside.busy, collect, keep, c.save)
        return save, jnp.where(cut, 0, lam), Inside(busy, kbar, ubar)


def put(buffer: Array, q: Array, value: Array | Parts) -> Array:
    """``buffer[q] = value``; parts one after another: a stack of them would be computed entry by entry."""
    if isinstance(value, Array):
        return set_row(buffer, q, value)
    for j, part in enumerate(value):
        buffer = lax.dynamic_update_slice(buffer, part[None, None], (q, j, 0), allow_negative_indices=False)
    return buffer


def weighted(weights: Array, x: Array) -> Array:
    """``sum_q weights[q] x[q]``."""
    return jnp.tensordot(weights.astype(x.dtype), x, 1, precision=lax.Precision.HIGHEST)


def powers(theta: Array, like: Array) -> Array:
    """``theta^j`` for the first axis of ``like``, shape ``(d+1, 1, B)``."""
    return jnp.stack([theta**j for j in range(like.shape[0])])[:, None].astype(like.dtype)
