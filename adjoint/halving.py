"""Parameter integrals over single steps of lam, cut in halves where a rule is not accurate enough, and those in halves again.

The parts of a step, one after another, are intervals ``[i, i + 1] / 2^d`` of it. All lanes work at once, each at a part of its
own.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..solvers.buffers import take
from .costate import CostateWalk
from .lam_rows import LamRows, nodes_of, of_live_rows
from .norms import mu_error
from .reverse import Mu, Reverse

WHOLE = 2**20  # a step, in units of its smallest part


def next_part(at: Array, width: Array, done: Array) -> tuple[Array, Array]:
    """Where the next part starts, and its width: after one that is ``done`` as long as one can stand there, else half."""
    at = jnp.where(done, at + width, at)
    return at, jnp.where(done, at & -at, jnp.maximum(width // 2, 1))


def integrate_adaptively(
    walk: CostateWalk, p: Array | None, rows: LamRows, todo: Array, mu: Mu, order: int, rtol: Array, atol: Array
) -> tuple[Mu, Array]:
    """Add the integral over the rows ``todo (Q, B)`` to ``mu``, by a rule of ``order``; also which lanes failed, ``(B,)``."""
    r, count = walk.reverse, todo.shape[0]
    index = jnp.arange(count, dtype=np.int32)[:, None]
    # one sum over all lanes has one error: their parts stand or fall together
    together = r.lanes > 1 and any(a is None for a in r.axes)

    def after(row: Array) -> Array:
        return jnp.min(jnp.where(todo & (index > row), index, count), 0)

    def part(carry):
        row, at, width, mu, failed = carry
        on = row < count
        own = {f: take(x, row)[None] for f, x in rows._asdict().items() if f != "used" and x is not None}
        some = rows._replace(**own | {"h": jnp.where(on, own["h"], 0.0)})
        low, length = (x.astype(rows.t.dtype)[None] / WHOLE for x in (at, width))
        points = of_live_rows(walk, some, nodes_of(walk, some, low, length, order))
        # d mu = -(df/dp)' lam dt, and the walk goes backwards: h is negative in the direction of integration
        lams = ((-w[:, None] * some.h * length)[..., None] * points.lam[0] for w in (points.weights, points.errors))
        share, error = r.pull_params_each(tuple(lams), points.u[0], points.t[0], p)
        size = jax.tree.map(lambda a, b: jnp.abs(a) + jnp.abs(b), mu, share)
        scaled = jnp.where(on, mu_error(r, error, size, rtol, atol), 0.0)
        last = (width == 1) | ~on
        fine = (scaled <= 1) | last
        fine = jnp.broadcast_to(jnp.all(fine), fine.shape) if together else fine
        fine = fine | ~jnp.isfinite(scaled)
        failed = failed | ((scaled > 1) & last) | ~jnp.isfinite(scaled)
        mu = accept(r, mu, share, fine)
        at, width = next_part(at, width, fine)
        through = at == WHOLE
        return jnp.where(through, after(row), row), jnp.where(through, 0, at), jnp.where(through, WHOLE, width), mu, failed

    start = after(jnp.full_like(todo[0], -1, np.int32))
    at, whole = jnp.zeros_like(start), jnp.full_like(start, WHOLE)
    carry = start, at, whole, mu, jnp.zeros_like(todo[0])
    _, _, _, mu, failed = lax.while_loop(lambda c: jnp.any(c[0] < count), part, carry)
    return mu, failed


def accept(r: Reverse, mu: Mu, share: Mu, fine: Array) -> Mu:
    """``mu`` and the share of the lanes that are ``fine``."""

    def leaf(x, s, axis):
        keep = fine[0] if axis is None else fine.reshape((-1,) + (1,) * (s.ndim - 1))
        return x + jnp.where(keep, s, 0)

    leaves = tuple(map(leaf, mu.leaves, share.leaves, r.axes))
    return Mu(leaves, None if mu.packed is None else leaf(mu.packed, share.packed, 0))
