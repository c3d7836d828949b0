"""Parameter integrals step by step, on one lane: what `row_integral` takes for many steps at once.

The points of a step are a loop, and all of it is a part of the kernel that steps lam. Where the estimate of the error is too
large, the step is cut in halves, and those in halves again: the parts of a step, one after another, are intervals
``[i, i + 1] / 2^d`` of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..solvers.buffers import get_row
from ..solvers.runge_kutta import Step
from .costate import CostateAux, CostateWalk
from .halving import WHOLE, accept, next_part
from .lam_rows import LamRows, Points, nodes_of, points_of
from .norms import mu_error
from .parameter_integral import ParameterIntegral
from .reverse import Mu, Reverse
from .row_integral import RowIntegral


@dataclass(frozen=True)
class PointIntegral(ParameterIntegral):
    """``nodes``: the order of the Gauss rule, None for the stages of the steps."""

    rtol: Array
    atol: Array
    nodes: int | None = None

    def add(self, walk: CostateWalk, aux: CostateAux, step: Step, accepted, extra: Any) -> CostateAux:
        r = walk.reverse
        if not r.has_mu:
            return aux
        row = LamRows.of_step(aux, step, accepted, self.nodes is None)

        def part(carry):
            at, width, mu, failed, by_nodes = carry
            low, length = (x.astype(row.t.dtype)[None] / WHOLE for x in (at, width))
            nodes = lambda: nodes_of(walk, row, low, length, self.nodes or 3)  # noqa: E731
            stages = lambda: points_of(walk, row, None)  # noqa: E731
            points = nodes() if self.nodes else lax.cond(by_nodes, *_as_many(nodes, stages))
            share, fine, finite = self._take(r, aux, points, row.h[0] * length[0], mu)
            smallest = ((width == 1) & by_nodes) | ~finite
            mu, on = accept(r, mu, share, fine | smallest), fine | smallest
            at, shorter = next_part(at, width, on)
            # the first part by nodes is the whole step
            width = jnp.where(on | by_nodes, shorter, width)
            return at, width, mu, failed | (smallest & ~fine), jnp.ones_like(by_nodes)

        begin = jnp.where(accepted, 0, WHOLE).astype(np.int32), jnp.full_like(aux.segment, WHOLE), aux.mu, aux.bad
        start = *begin, jnp.asarray(self.nodes is not None)
        _, _, mu, bad, _ = lax.while_loop(lambda c: jnp.any(c[0] < WHOLE), part, start)
        return aux._replace(mu=mu, bad=bad)

    def _take(self, r: Reverse, aux: CostateAux, p: Points, length: Array, mu: Mu) -> tuple[Mu, Array, Array]:
        """The share of an interval of one step, whether it is accurate, and whether it is finite."""

        def plus(total: Mu, weight: Array, slope: Mu | None) -> Mu:
            return jax.tree.map(lambda x, y: x + weight.astype(x.dtype) * y, total, slope)

        def add(i, sums):
            u, t = get_row(p.u[0], i), get_row(p.t[0], i)
            _, back = r.vjp(lambda th, u_, t_: r.system.rhs(u_, th, t_), (u, t), aux.p)
            # d mu = -(df/dp)' lam dt, and the walk goes backwards
            slope = back(-length[:, None] * get_row(p.lam[0], i))[0]
            return plus(sums[0], get_row(p.weights, i), slope), plus(sums[1], get_row(p.errors, i), slope)

        share, error = lax.fori_loop(0, p.t.shape[1], add, (r.zero_mu(),) * 2)
        size = jax.tree.map(lambda a, b: jnp.abs(a) + jnp.abs(b), mu, share)
        scaled = mu_error(r, error, size, self.rtol, self.atol)
        return share, scaled <= 1, jnp.isfinite(scaled)


def _as_many(*rules: Callable[[], Points]) -> list[Callable[[], Points]]:
    """The rules with as many points each: those that one lacks have no weight."""
    counts = [jax.eval_shape(rule).t.shape[1] for rule in rules]

    def padded(rule: Callable[[], Points], missing: int) -> Points:
        def more(x: Array, axis: int, **how: Any) -> Array:
            return jnp.pad(x, [(0, missing if i == axis else 0) for i in range(x.ndim)], **how)

        p = rule()
        t, lam, u = (more(x, 1, mode="edge") for x in (p.t, p.lam, p.u))
        return Points(t, lam, u, more(p.weights, 0), more(p.errors, 0))

    return [lambda rule=rule, n=n: padded(rule, max(counts) - n) for rule, n in zip(rules, counts, strict=True)]


def parameter_integral(r: Reverse, rtol: Array, atol: Array, nodes: int | None = None) -> ParameterIntegral:
    """Steps one by one, or many at once; see both."""
    return (PointIntegral if r.compact else RowIntegral)(rtol, atol, nodes)
