"""Derivatives of maxima and minima over an axis that do not compare computed numbers for equality.

JAX takes the derivative of ``max_i x_i`` from the entries that are equal to it. XLA may compute an entry twice, once with fused
multiply-adds and once without; then no entry is equal, and the derivative is zero or NaN without a word. Here it is that of the
entry ``x_k``, ``k = argmax_i x_i`` (the first, where several are equal): a subgradient at a tie, as every choice is.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import ClosedJaxpr

from ..solvers.components import as_it_stands

EXTREMA: dict[str, tuple[Callable, Callable]] = {"reduce_max": (jnp.max, lax.argmax), "reduce_min": (jnp.min, lax.argmin)}
#: functions with a derivative of their own, which is theirs to say
CUSTOM = frozenset(["custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"])


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def extremum(name: str, axes: tuple[int, ...], x: Array) -> Array:
    return EXTREMA[name][0](x, axes)


@extremum.defjvp
def _extremum_jvp(name: str, axes: tuple[int, ...], primals: tuple, tangents: tuple):
    (x,), (dx,) = primals, tangents
    last = tuple(range(x.ndim - len(axes), x.ndim))
    flat = lambda a: lax.collapse(jnp.moveaxis(a, axes, last), x.ndim - len(axes))  # noqa: E731
    rows = flat(x)
    at = EXTREMA[name][1](rows, rows.ndim - 1, np.int32)
    chosen = at[..., None] == lax.broadcasted_iota(np.int32, rows.shape, rows.ndim - 1)
    return extremum(name, axes, x), jnp.sum(jnp.where(chosen, flat(dx), 0), -1)


def has_extrema(jaxpr: Any) -> bool:
    """Whether a jaxpr takes a maximum or a minimum of real numbers, and leaves its derivative to JAX."""
    return any(_is_extremum(eqn) or _holds_extrema(eqn) for eqn in jaxpr.eqns)


def _holds_extrema(eqn: Any) -> bool:
    return eqn.primitive.name not in CUSTOM and any(map(has_extrema, _inner(eqn)))


def _is_extremum(eqn: Any) -> bool:
    known = eqn.primitive.name in EXTREMA and jnp.issubdtype(eqn.invars[0].aval.dtype, jnp.floating)
    return known and bool(eqn.params["axes"]) and eqn.invars[0].aval.size > 0


def _jaxprs(value: Any) -> list[Any]:
    values = value if isinstance(value, (tuple, list)) else [value]
    return [v for v in values if hasattr(v, "eqns") or isinstance(v, ClosedJaxpr)]


def _inner(eqn: Any) -> list[Any]:
    return [getattr(v, "jaxpr", v) for value in eqn.params.values() for v in _jaxprs(value)]


def evaluate(jaxpr: Any, consts: Sequence[Any], *args: Any) -> list[Any]:
    """The results of a jaxpr, its maxima and minima by `extremum`."""
    known: dict[Any, Any] = {}
    read = lambda v: v.val if hasattr(v, "val") else known[v]  # noqa: E731
    known.update(zip(jaxpr.constvars, consts, strict=True))
    known.update(zip(jaxpr.invars, args, strict=True))
    for eqn in jaxpr.eqns:
        inputs = [read(v) for v in eqn.invars]
        if _is_extremum(eqn):
            out = [extremum(eqn.primitive.name, tuple(eqn.params["axes"]), *inputs)]
        else:
            if _holds_extrema(eqn):
                eqn = eqn.replace(params={name: _rewritten(value) for name, value in eqn.params.items()})
            out = as_it_stands(eqn, inputs)
        known.update(zip(eqn.outvars, out, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _rewritten(value: Any) -> Any:
    """A parameter of an equation, the jaxprs in it rewritten."""
    if not _jaxprs(value):
        return value
    if isinstance(value, (tuple, list)):
        return type(value)(map(_rewritten, value))
    closed = value if isinstance(value, ClosedJaxpr) else ClosedJaxpr(value, ())
    new = jax.make_jaxpr(partial(evaluate, closed.jaxpr, closed.consts))(*closed.in_avals)
    return new if isinstance(value, ClosedJaxpr) else new.jaxpr
