"""Hybrid right-hand sides: known physics and a network in one equation."""

from __future__ import annotations

from typing import Any, Callable

import equinox as eqx
import jax.numpy as jnp
from jax import Array


class HybridRHS(eqx.Module):
    """``du/dt = known(u, p.known_params, t) + network(u)`` for a flat state ``u (n,)``.

    An instance is its own parameters: ``ODEProblem(hx.HybridRHS.rhs, u0, tspan, HybridRHS(known, network))``. known: a
    function ``(u, q, t) -> (n,)``; known_params: its parameters ``q``, trained with the network. acts_on: the network
    drives the first ``acts_on`` components only, and the others follow the known part (components that only change at
    events, such as a sampled input, have a known part of zero). known may be None.
    """

    network: Callable[[Array], Array]
    known_params: Any = None
    known: Callable[[Array, Any, Any], Array] | None = eqx.field(static=True, default=None)
    acts_on: int | None = eqx.field(static=True, default=None)

    @staticmethod
    def rhs(u: Array, p: HybridRHS, t: Any) -> Array:
        """The right-hand side, in the form that `ODEProblem` takes."""
        learned = p.network(u)
        if p.acts_on is not None:
            if learned.shape != (p.acts_on,):
                raise ValueError(
                    f"HybridRHS: the network returned shape {learned.shape}; acts_on={p.acts_on} expects ({p.acts_on},)."
                )
            learned = jnp.concatenate([learned, jnp.zeros(u.shape[0] - p.acts_on, learned.dtype)])
        return learned if p.known is None else p.known(u, p.known_params, t) + learned
