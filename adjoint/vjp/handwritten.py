"""HandWrittenVJP: the user's own vector-Jacobian products, in JAX."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable

import jax
import jax.numpy as jnp

from ..params import Params, is_inexact
from .arguments import check_arguments
from .base import RHS
from .dressing import Bars, Point, automatic, with_pullback


@dataclass(frozen=True)
class HandWrittenVJP:
    """``vjp_u(lam, u, p, t)``, ``vjp_p(lam, u, p, t)`` and ``vjp_t(lam, u, p, t)``, or ``vjp(...) -> (u part, p part)``.

    Each returns a cotangent in the structure of ``u``, of ``p``, or a number. ``lam`` has the structure of what f
    returns. Parts that are not given come from JAX; a part that is given is used, and its automatic counterpart is never
    formed. Leaves of ``p`` that are not floating point may be returned as anything; what they hold is not read.

    Arrays that the right-hand side closes over are in no part, and get their cotangent from JAX. Those that a product
    closes over are read anew by every solve, like those of the right-hand side.
    """

    vjp_u: Callable | None = None
    vjp_p: Callable | None = None
    vjp_t: Callable | None = None
    vjp: Callable | None = None
    label: str = field(default="HandWrittenVJP", kw_only=True, repr=False)  # how errors name it

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
        return with_pullback(f, self._pull, self, self._products)

    # All parts are formed, and the compiler drops those that are not used. (Flags for what is wanted cannot travel in
    # the residuals of a custom_vjp: JAX keeps one residual structure for every use of a traced one.)
    def _products(self, lam: Any, params: Params, x: Point) -> dict[str, Any]:
        args = (lam, x.u, params.rebuild(x.p), x.t, *x.extra)
        names = ("lam", "u", "p", "t", "index")[: len(args)]
        for part in ("vjp", "vjp_u", "vjp_p", "vjp_t"):
            if getattr(self, part) is not None:
                check_arguments(self.label, part, getattr(self, part), names)
        bars: dict[str, Any] = {}
        if self.vjp is not None:
            both = self.vjp(*args)
            if not (isinstance(both, tuple) and len(both) == 2):
                raise TypeError(f"{self.label}: vjp must return the pair (u part, p part).")
            bars["u"], bars["p"] = both
        for name, own in (("u", self.vjp_u), ("p", self.vjp_p), ("t", self.vjp_t)):
            if own is not None:
                bars[name] = own(*args)
        if "u" in bars:
            bars["u"] = _like(f"{self.label}: vjp_u", bars["u"], x.u)
        if "p" in bars:
            bars["p"] = _like_params(f"{self.label}: vjp_p", bars["p"], params, x.p)
        if "t" in bars:
            bars["t"] = _like(f"{self.label}: vjp_t", bars["t"], x.t)
        return bars

    def _pull(self, value: Callable[[Point], Any], params: Params, lam: Any, x: Point, own: dict[str, Any]) -> Bars:
        rest = tuple(n for n in ("u", "p", "t", "held") if n not in own)
        return Bars(**own, **automatic(value, x, rest, lam))


def _like(name: str, bar: Any, x: Any) -> Any:
    """A cotangent in the structure of ``x``; what the user returned is checked leaf by leaf."""
    leaves, tree = jax.tree.flatten(x)
    given = _flatten_up_to(tree, name, bar)
    paths = [k for k, _ in jax.tree_util.tree_leaves_with_path(x)]
    return tree.unflatten([_leaf(name, k, b, y) for k, b, y in zip(paths, given, leaves, strict=True)])


def _like_params(name: str, bar: Any, params: Params, dynamic: tuple[Any, ...]) -> tuple[Any, ...]:
    """One cotangent for each dynamic leaf of p; those of leaves that are not floating point are not looked at."""
    given = params.dynamic_of(_flatten_up_to(params.treedef, name, bar))
    paths = [k for k, _ in jax.tree_util.tree_leaves_with_path(params.treedef.unflatten(params.static))]
    triples = zip(params.dynamic_of(paths), given, dynamic, strict=True)
    return tuple(_leaf(name, k, b, y) if is_inexact(y) else None for k, b, y in triples)


def _flatten_up_to(tree: Any, name: str, bar: Any) -> list[Any]:
    try:
        return tree.flatten_up_to(bar)
    except (ValueError, TypeError) as error:
        raise TypeError(
            f"{name} must return the structure of its argument.\n  given:    {jax.tree.structure(bar)}\n"
            f"  expected: {tree}"
        ) from error


def _leaf(name: str, path: Any, value: Any, target: Any) -> Any:
    where = jax.tree_util.keystr(path) or "its argument"
    if value is None:
        raise TypeError(f"{name} returned None at {where}; expected shape {jnp.shape(target)}.")
    if jnp.shape(value) != jnp.shape(target):
        raise ValueError(
            f"{name} returned shape {jnp.shape(value)} at {where}; expected {jnp.shape(target)}."
        )
    return jnp.asarray(value).astype(jnp.result_type(target))
