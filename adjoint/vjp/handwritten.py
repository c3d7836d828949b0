"""HandWrittenVJP: the user's own vector-Jacobian products, in JAX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from .base import RHS


@dataclass(frozen=True)
class HandWrittenVJP:
    """``vjp_u(lam, u, p, t)``, ``vjp_p(lam, u, p, t)`` and ``vjp_t(lam, u, p, t)``, or ``vjp(...) -> (u part, p part)``.

    Each returns a cotangent in the structure of ``u``, of ``p``, or a number. ``lam`` has the structure of ``u``. Parts
    that are not given come from JAX; a part that is given is used, and its automatic counterpart is never formed. Leaves
    of ``p`` that are not floating point may be returned as anything; what they hold is not read.

    Arrays that the right-hand side closes over are invisible to hand-written parts: pass them in ``p``.
    """

    vjp_u: Callable | None = None
    vjp_p: Callable | None = None
    vjp_t: Callable | None = None
    vjp: Callable | None = None

    def __post_init__(self):
        if self.vjp is not None and (self.vjp_u is not None or self.vjp_p is not None):
            raise ValueError("HandWrittenVJP: give either vjp, or vjp_u and vjp_p; not both.")
        if all(g is None for g in (self.vjp, self.vjp_u, self.vjp_p, self.vjp_t)):
            raise ValueError("HandWrittenVJP: give at least one of vjp, vjp_u, vjp_p and vjp_t.")
        for name in ("vjp", "vjp_u", "vjp_p", "vjp_t"):
            g = getattr(self, name)
            if g is not None and not callable(g):
                raise TypeError(f"HandWrittenVJP: {name} must be callable; got {type(g).__name__}.")

    def dress(self, f: RHS) -> RHS:
        @jax.custom_vjp
        def dressed(u, p, t):
            return f(u, p, t)

        # All three parts are formed, and the compiler drops those that are not used. (Flags for what is wanted cannot
        # travel in the residuals: JAX keeps one residual structure for every use of a traced custom_vjp.)
        def forward(u, p, t):
            return f(u, p, t), (u, p, t)

        def backward(saved, lam):
            u, p, t = saved
            du = dp = None
            if self.vjp is not None:
                both = self.vjp(lam, u, p, t)
                if not (isinstance(both, tuple) and len(both) == 2):
                    raise TypeError("HandWrittenVJP: vjp must return the pair (u part, p part).")
                du, dp = both
            if du is None:
                du = self.vjp_u(lam, u, p, t) if self.vjp_u else _auto(lambda x: f(x, p, t), u, lam)
            if dp is None:
                dp = self.vjp_p(lam, u, p, t) if self.vjp_p else _auto(lambda x: f(u, x, t), p, lam)
            dt = self.vjp_t(lam, u, p, t) if self.vjp_t else _auto(lambda x: f(u, p, x), t, lam)
            return _like("vjp_u", du, u), _like("vjp_p", dp, p), _like("vjp_t", dt, t)

        dressed.defvjp(forward, backward)
        return dressed


def _auto(g: Callable, x: Any, lam: Any) -> Any:
    """The cotangent of the inexact leaves of ``x`` by JAX; other leaves get None."""
    leaves, tree = jax.tree.flatten(x)
    moving = [i for i, leaf in enumerate(leaves) if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)]

    def along(*values):
        full = list(leaves)
        for i, value in zip(moving, values, strict=True):
            full[i] = value
        return g(tree.unflatten(full))

    bars = jax.vjp(along, *(leaves[i] for i in moving))[1](lam)
    full: list[Any] = [None] * len(leaves)
    for i, bar in zip(moving, bars, strict=True):
        full[i] = bar
    return tree.unflatten([0.0 if b is None else b for b in full])


def _like(name: str, bar: Any, x: Any) -> Any:
    """A cotangent in the structure of ``x``; what the user returned is checked leaf by leaf."""
    if jax.tree.structure(bar) != jax.tree.structure(x):
        raise TypeError(
            f"HandWrittenVJP: {name} must return the structure of its argument.\n  given:    {jax.tree.structure(bar)}\n"
            f"  expected: {jax.tree.structure(x)}"
        )

    def leaf(path, value, target):
        if not jnp.issubdtype(jnp.result_type(target), jnp.inexact):
            return np.zeros(jnp.shape(target), jax.dtypes.float0)
        if jnp.shape(value) != jnp.shape(target):
            where = jax.tree_util.keystr(path)
            raise ValueError(
                f"HandWrittenVJP: {name} returned shape {jnp.shape(value)} at {where or 'its argument'}; "
                f"expected {jnp.shape(target)}."
            )
        return jnp.asarray(value).astype(jnp.result_type(target))

    return jax.tree_util.tree_map_with_path(leaf, bar, x)
