"""The transpose of one Runge-Kutta step on a light system: small state, small parameters, small right-hand side.

Everything is a number, and one array ``(B,)`` for each over the lanes (see `solvers.components`), so that a row is a few
kernels. JAX transposes the step itself: as a function of its state u, of its first slope k_0 and of the parameters,

    x_q = u + h sum_{r<q} a_qr k_r,    k_q = f(x_q),    q = 1, ..., s,

with the end x_s. The cotangent of k_0 is handed to the row before, whose last slope it is (FSAL). What enters inside the
step does so through its continuous extension ``u(theta) = u + h sum_j theta^j sum_q d_qj k_q``: a cotangent at theta has
the moments ``theta^j``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..solvers.buffers import get_row, take
from ..solvers.components import Numbers, split
from ..solvers.light_steps import Parts, light_rhs, light_stages, parts_of
from ..solvers.runge_kutta import combine
from .diagnostics import Seen, see_lam
from .reverse import Mu, Reverse

class Rows(NamedTuple):
    """The carry of the sweep over rows without events."""

    row: Array
    save: Array  # (B,)
    lam: Parts
    kbar: Parts
    mu: tuple[Parts, ...]  # on every lane, the numbers of every differentiated leaf
    seen: Seen | None


class ComponentRows:
    """Transposes the rows of a record one by one."""

    def __init__(self, reverse: Reverse):
        self.reverse, self.tableau = reverse, reverse.tableau
        assert reverse.result.steps is not None and reverse.system.light is not None
        self.steps = reverse.result.steps

    def zero_mu(self) -> tuple[Parts, ...]:
        r = self.reverse
        leaves = [(np.size(x) // (1 if r.shared[i] else r.lanes), x.dtype) for i, x in ((i, r.theta[i]) for i in r.diff)]
        return tuple(tuple(jnp.zeros(r.lanes, dtype) for _ in range(size)) for size, dtype in leaves)

    def finish_mu(self, mu: tuple[Parts, ...]) -> Mu:
        """Numbers put together to cotangents of the leaves."""
        r, leaves = self.reverse, []
        for parts, leaf, axis in zip(mu, r.leaves, r.axes, strict=True):
            x = jnp.stack([jnp.sum(v) for v in parts] if axis is None else parts, -1) if parts else jnp.zeros_like(leaf)
            leaves.append(x.reshape(leaf.shape))
        return Mu(tuple(leaves), None)

    def row(self, c: Rows, state: Array) -> Rows:
        """Transpose the row ``c.row``, which starts at ``state (B, n)``."""
        r, steps, i = self.reverse, self.steps, c.row
        t, h = get_row(steps.t, i), get_row(steps.h, i)
        theta = None if steps.theta is None else get_row(steps.theta, i)
        saves = r.result.saves
        u = parts_of(state)

        def remaining(save):
            return (save > 0) & (take(saves.row, save - 1) >= i)

        def plain(c: Rows):
            return self._transpose(c, t, h, u, c.lam, None)

        def inside(c: Rows):
            """With what enters through the continuous extension."""
            powers = self.tableau.dense.shape[1]
            moments = tuple(tuple(jnp.zeros_like(x) for _ in range(powers + 1)) for x in c.lam)
            lam = c.lam
            if theta is not None:
                cut = theta < 1
                moments = _add_moments(moments, theta, tuple(jnp.where(cut, x, 0) for x in lam))
                lam = tuple(jnp.where(cut, 0, x) for x in lam)

            def take_in(carry):
                save, moments = carry
                on = remaining(save)
                some = h != 0
                at = jnp.where(some, (take(saves.t, save - 1) - t) / jnp.where(some, h, 1.0), 1.0)
                bar = jnp.where(on[:, None], take(r.cotangents.saves, save - 1), 0)
                return save - on, _add_moments(moments, jnp.clip(at, 0.0, 1.0), parts_of(bar))

            save, moments = lax.while_loop(lambda x: jnp.any(remaining(x[0])), take_in, (c.save, moments))
            return self._transpose(c._replace(save=save), t, h, u, lam, moments)

        busy = jnp.zeros((), bool)
        if saves.row.shape[0]:
            busy = busy | jnp.any(remaining(c.save))
        if theta is not None:
            busy = busy | jnp.any(theta < 1)
        possible = saves.row.shape[0] > 0 or theta is not None
        return lax.cond(busy, inside, plain, c) if possible else plain(c)

    def _transpose(self, c: Rows, t: Array, h: Array, u: Parts, lam: Parts, moments: Any) -> Rows:
        r = self.reverse

        axes = tuple(None if s else 0 for s in r.shared)
        ubar, kbar, dmu = jax.vmap(self._lane, (axes, *(0,) * 6))(r.theta, t, h, u, lam, c.kbar, moments)
        # without the barrier what reads these results computes them again
        ubar, kbar, mu = lax.optimization_barrier((ubar, kbar, jax.tree.map(jnp.add, c.mu, dmu)))
        seen = c.seen
        if seen is not None:
            # what is pending belongs to the cotangent
            late = jax.vmap(self._pull_first, (axes, *(0,) * 3))(r.theta, t, u, kbar)
            lam = jnp.stack([x + y for x, y in zip(ubar, late)], 1)
            seen = see_lam(seen, lam[:, : r.components], jnp.asarray(True))
        return Rows(c.row - 1, c.save, ubar, kbar, mu, seen)

    def _lane(self, theta, t, h, u, lam, kbar, moments):
        """One step on one lane; all arguments but the parameters are numbers, or tuples of them."""
        r, tableau = self.reverse, self.tableau
        s, leaves = tableau.stages, [split(theta[i]) for i in r.diff]
        zero = tuple(jnp.zeros_like(x) for x in u)

        def filled(numbers):
            arguments: list[Any] = list(theta)
            for i, leaf, items in zip(r.diff, leaves, numbers, strict=True):
                arguments[i] = Numbers(items, leaf.place) if leaf.place.ndim else items[0]
            return arguments

        def step(u, k0, numbers):
            end, slopes = light_stages(r.system, filled(numbers), t, h, u, k0)
            return end, tuple(slopes)

        numbers = tuple(leaf.items for leaf in leaves)
        k0 = light_rhs(r.system, u, theta, t)
        _, pull = jax.vjp(step, u, k0, numbers)
        bars = [zero] * s + [kbar]
        if moments is not None:
            weights = [[h * combine(tableau.dense[q], list(m[1:])) for m in moments] if np.any(tableau.dense[q]) else None for q in range(s + 1)]
            bars = [bar if row is None else tuple(b + w for b, w in zip(bar, row)) for bar, row in zip(bars, weights)]
        ubar, kbar, dmu = pull((lam, tuple(bars)))
        if moments is not None:
            ubar = tuple(x + m[0] for x, m in zip(ubar, moments))
        return ubar, kbar, dmu


    def _pull_first(self, theta, t, u, kbar) -> Parts:
        """The cotangent of the first slope of a step, pulled back to its state."""
        return jax.vjp(lambda x: light_rhs(self.reverse.system, x, theta, t), u)[1](kbar)[0]


def _add_moments(moments: Any, theta: Array, bars: Parts) -> Any:
    """``theta^j bar`` added for every power j."""
    return tuple(tuple(m + theta**j * bar for j, m in enumerate(row)) for row, bar in zip(moments, bars, strict=True))
