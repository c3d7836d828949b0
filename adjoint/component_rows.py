"""Transposed steps of a light system: small state, small parameters, small right-hand side.

The right-hand side is computed number by number (see `solvers.components`): each is an array over the lanes, and all
vectorises over them.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..solvers.components import Numbers, by_components, split
from .reverse import Mu, Reverse
from .stage_rows import Parts, StageRows


class ComponentRows(StageRows):
    """The parameters' cotangent is carried on every lane: the numbers of every differentiated leaf."""

    def __init__(self, reverse: Reverse):
        super().__init__(reverse)
        # parameters as numbers, each one for all lanes or an array over them
        self.theta = tuple(
            split(x) if shared else split_lanes(x) for x, shared in zip(reverse.theta, reverse.shared, strict=True)
        )
        self.axes = tuple(
            (None if shared else 0,) * len(x.items) for x, shared in zip(self.theta, reverse.shared, strict=True)
        )

    # -- parameters

    def prepare(self, sweep: Any) -> Any:
        return sweep._replace(numbers=self.zero_mu())

    def complete(self, sweep: Any) -> Any:
        return sweep._replace(mu=self.reverse.add(sweep.mu, self.finish_mu(sweep.numbers)))

    def begin(self, sweep: Any) -> Any:
        return sweep.numbers

    def end(self, sweep: Any, mu: Any) -> Any:
        return sweep._replace(numbers=mu)

    def zero_mu(self) -> tuple[Parts, ...]:
        r = self.reverse
        return tuple(tuple(jnp.zeros(r.lanes, r.theta[i].dtype) for _ in self.theta[i].items) for i in r.diff)

    def finish_mu(self, mu: tuple[Parts, ...]) -> Mu:
        """Numbers put together to cotangents of the leaves."""
        leaves = []
        for parts, leaf, axis in zip(mu, self.reverse.leaves, self.reverse.axes, strict=True):
            x = jnp.stack([jnp.sum(v) for v in parts] if axis is None else parts, -1) if parts else jnp.zeros_like(leaf)
            leaves.append(x.reshape(leaf.shape))
        return Mu(tuple(leaves), None)

    # -- the right-hand side

    def _lane(self, numbers: tuple[Parts, ...], x: Parts, t: Array) -> Parts:
        """On one lane."""
        theta = [Numbers(items, leaf.place) if leaf.place.ndim else items[0] for items, leaf in zip(numbers, self.theta)]
        (out,) = by_components(self.reverse.system.light, [Numbers(x, np.arange(len(x))), t, *theta])
        return tuple(split(out).at((j,)) for j in range(len(x)))

    def slope(self, x: Array, t: Array, p: Array | None) -> Parts:
        numbers = tuple(leaf.items for leaf in self.theta)
        return jax.vmap(self._lane, (self.axes, 0, 0))(numbers, tuple(x), t)

    def pull(self, v: Array, x: Array, t: Array, p: Array | None) -> tuple[Parts, tuple[Parts, ...]]:
        diff = self.reverse.diff

        def lane(numbers, v, x, t):
            def function(x, moving):
                full = list(numbers)
                for i, items in zip(diff, moving, strict=True):
                    full[i] = items
                return self._lane(tuple(full), x, t)

            return jax.vjp(function, x, tuple(numbers[i] for i in diff))[1](v)

        numbers = tuple(leaf.items for leaf in self.theta)
        return jax.vmap(lane, (self.axes, 0, 0, 0))(numbers, tuple(v), tuple(x), t)


def split_lanes(x: Array) -> Numbers:
    """The numbers of ``x (B, ...)``, an array over the lanes each."""
    flat = x.reshape(x.shape[0], -1)
    return Numbers(tuple(flat[:, j] for j in range(flat.shape[1])), np.arange(flat.shape[1]).reshape(x.shape[1:]))
