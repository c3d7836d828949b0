"""Hybrid right-hand sides: known physics and a network in one equation."""

from __future__ import annotations

from typing import Any, Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array


class HybridRHS(eqx.Module):
    """``du/dt = known(u, p.known_params, t) + network(u)`` for a flat state ``u (n,)``.

    An instance is its own parameters: ``ODEProblem(hx.HybridRHS.rhs, u0, tspan, hx.HybridRHS(network, q, known))``.
    known: a function ``(u, q, t) -> (n,)``, or None for zero; known_params: its parameters ``q``, trained with the
    network. acts_on: the network drives the first ``acts_on`` components only, and the others follow the known part
    (components that only change at events, such as a sampled input, have a known part of zero).

    Raises ValueError if known holds arrays itself (they belong in known_params), or if the network returns another
    shape than ``(n,)``, or ``(acts_on,)``.
    """

    network: Callable[[Array], Array]
    known_params: Any = None
    known: Callable[[Array, Any, Any], Array] | None = eqx.field(static=True, default=None)
    acts_on: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        if any(eqx.is_array(x) for x in jax.tree.leaves(self.known)):
            raise ValueError("HybridRHS: known is a function (u, q, t); give the arrays that it uses as known_params.")

    @staticmethod
    def rhs(u: Array, p: HybridRHS, t: Any) -> Array:
        """The right-hand side, in the form that `ODEProblem` takes."""
        learned = p.network(u)
        driven = u.shape[0] if p.acts_on is None else p.acts_on
        if learned.shape != (driven,) or driven > u.shape[0]:
            raise ValueError(
                f"HybridRHS: the network returned shape {learned.shape} for a state of shape {u.shape}; "
                f"acts_on={p.acts_on} expects ({driven},)."
            )
        if p.acts_on is not None:
            learned = jnp.concatenate([learned, jnp.zeros(u.shape[0] - p.acts_on, learned.dtype)])
        return learned if p.known is None else p.known(u, p.known_params, t) + learned
