"""Numbers that are known and have no derivative: it is NaN, and never a number.

Forwards a tangent becomes NaN. Backwards a cotangent of zero stays zero, for nothing depends on the number then; any other
becomes NaN.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Sequence

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir


def undefined(x: Array, where: Array) -> Array:
    """``x (B,)``, whose derivative is NaN on the entries ``where (B,)``."""
    return nan_derivative((0,), where, [x])[0]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def shown_as(value: float, x: Array) -> Array:
    """``value`` with the derivative of ``x``: what is shown in place of the results of a solve that failed depends on it."""
    return jnp.where(jnp.isnan(x), value, value).astype(x.dtype)  # one for each lane, as the derivatives are


@shown_as.defjvp
def _shown_as_jvp(value: float, primals: tuple, tangents: tuple):
    return shown_as(value, *primals), tangents[0]


def nan_derivative(axes: tuple[int, ...], where: Array, xs: Sequence[Array]) -> list[Array]:
    """``xs``, whose derivatives are NaN on the lanes ``where (B,)``; ``axes``: where the lanes stand in each.

    The results of a lane stand together: one cotangent other than zero makes all of them NaN.
    """

    @jax.custom_jvp
    def same(where, *xs):
        return list(xs)

    @same.defjvp
    def _(primals, tangents):
        where, *xs = primals
        return xs, undefined_p.bind(where, *tangents[1:], axes=axes, backwards=False)

    return same(where, *xs)


undefined_p = Primitive("hybridax_undefined")
undefined_p.multiple_results = True


def _mask(where: Array, *xs: Array, axes: tuple[int, ...], backwards: bool) -> list[Array]:
    """``where (..., B)``: every x has its leading axes, and the lanes at ``axes`` of what follows."""
    ahead = where.ndim - 1
    places = [ahead + axis for axis in axes]
    if backwards:
        rest = [tuple(i for i in range(ahead, x.ndim) if i != place) for x, place in zip(xs, places, strict=True)]
        found = [jnp.any(x != 0, r) for x, r in zip(xs, rest, strict=True) if x.size]
        where = where & jnp.any(jnp.stack(found), 0) if found else where

    def nan(x: Array, place: int) -> Array:
        shape = [*where.shape[:ahead], *(1,) * (x.ndim - ahead)]
        shape[place] = where.shape[-1]
        return jnp.where(where.reshape(shape), jnp.nan, x).astype(x.dtype)

    return [nan(x, place) for x, place in zip(xs, places, strict=True)]


def _batch(args: Sequence[Any], dims: Sequence[Any], **how: Any):
    size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
    spread = lambda x: jnp.broadcast_to(x, (size, *x.shape))  # noqa: E731
    moved = [spread(x) if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(args, dims, strict=True)]
    return undefined_p.bind(*moved, **how), [0] * (len(args) - 1)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **how: Any):
    where, dots = primals[0], [ad.instantiate_zeros(t) for t in tangents[1:]]
    return undefined_p.bind(*primals, **how), undefined_p.bind(where, *dots, **how)


def _transpose(cotangents: Sequence[Any], where: Array, *xs: Any, axes: tuple[int, ...], backwards: bool):
    bars = [ad.instantiate_zeros(c) for c in cotangents]
    grads = undefined_p.bind(where, *bars, axes=axes, backwards=True)
    return [None, *(g if ad.is_undefined_primal(x) else None for g, x in zip(grads, xs, strict=True))]


undefined_p.def_impl(lambda *args, **how: jax.jit(lambda *x: _mask(*x, **how))(*args))
undefined_p.def_abstract_eval(lambda where, *xs, **how: list(xs))
mlir.register_lowering(undefined_p, mlir.lower_fun(_mask, multiple_results=True))
batching.primitive_batchers[undefined_p] = _batch
ad.primitive_jvps[undefined_p] = _jvp
ad.primitive_transposes[undefined_p] = _transpose
