"""One explicit Runge-Kutta step over lanes.

Arrays carry a leading lane axis: ``t, h (B,)``, ``u (B, n)``. Stage slopes are kept as one array
``k (B, s+1, n)``, so that the step's end, its error and its continuous extension are small products.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, Callable, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .tableau import Tableau

MANY = 2**12  # slopes, from which on XLA makes a sum over stages a call of a library, slower than the sum written out


class Step(NamedTuple):
    """What one attempted step leaves: from ``(t, u)`` over ``h`` to ``u1``, with its slopes.

    ``ahead``: what the walk knew of the stages before they were taken.
    """

    t: Array
    h: Array
    u: Array
    u1: Array
    k: Array
    ahead: Any = None


def combine(weights: np.ndarray, slopes: list[Array]) -> Array:
    """``sum_i weights[i] slopes[i]``, without the products whose weight is zero."""
    terms = [k * np.asarray(w, _real(k.dtype)) for w, k in zip(weights, slopes, strict=False) if w != 0]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _real(dtype) -> np.dtype:
    return np.finfo(dtype).dtype


def take_step(
    tableau: Tableau, rhs: Callable, t: Array, h: Array, u: Array, k0: Array, ahead: Any = None, rolled: bool = False
) -> Step:
    """One step of ``u' = rhs(i, t, u)``, i the stage; costs ``tableau.stages`` evaluations of ``rhs``.

    ``rolled``: the stages are a loop, and ``i`` is traced: less to compile, and slower unless it is one kernel.
    """
    if rolled:
        return _rolled_step(tableau, rhs, t, h, u, k0, ahead)
    hu, ui, slopes = h[:, None], u, [k0]
    for i in range(1, tableau.stages + 1):
        ui = u + hu * combine(tableau.a[i, :i], slopes)
        slopes.append(rhs(i, t + h * np.asarray(tableau.c[i], t.dtype), ui))
    return Step(t, h, u, ui, jnp.stack(slopes, 1), ahead)


def _rolled_step(tableau: Tableau, rhs: Callable, t: Array, h: Array, u: Array, k0: Array, ahead: Any) -> Step:
    a, c = (jnp.asarray(x, t.dtype) for x in (tableau.a, tableau.c))

    def stage(i, carry):
        k, _ = carry
        ui = u + h[:, None] * jnp.tensordot(a[i].astype(k.dtype), k, (0, 1), precision=lax.Precision.HIGHEST)
        return lax.dynamic_update_index_in_dim(k, rhs(i, t + h * c[i], ui), i, 1, allow_negative_indices=False), ui

    k = jnp.zeros((u.shape[0], tableau.stages + 1, u.shape[1]), k0.dtype)
    k, u1 = lax.fori_loop(1, tableau.stages + 1, stage, (k.at[:, 0].set(k0), u))
    return Step(t, h, u, u1, k, ahead)


def local_error(tableau: Tableau, step: Step) -> Array:
    """The embedded error estimate ``h sum_i e_i k_i``, shape ``(B, n)``."""
    assert tableau.e is not None
    return step.h[:, None] * combine(tableau.e, [step.k[:, i] for i in range(tableau.stages + 1)])


def interpolate(tableau: Tableau, u: Array, h: Array, k: Array, theta: Array) -> Array:
    """Continuous extension at fractions ``theta`` of steps: ``u (..., n)``, ``h, theta (...)``, ``k (..., s+1, n)``."""
    weights = tableau.dense_weights(theta) * h[..., None]
    if k.size < MANY:
        return u + jnp.sum(weights[..., None] * k, -2)
    return u + reduce(jnp.add, (weights[..., q, None] * k[..., q, :] for q in range(k.shape[-2])))


def extension_of(tableau: Tableau, step: Step) -> Callable[[Array], Array]:
    """`interpolate` on one step as a polynomial, for many fractions ``(B,)``; the same to rounding."""
    dense = jnp.asarray(tableau.dense.T, step.t.dtype).astype(step.k.dtype)
    powers = jnp.tensordot(dense, step.k, (1, 1), precision=lax.Precision.HIGHEST)  # (d, B, n)

    def at(theta: Array) -> Array:
        total, theta = powers[-1], theta[:, None]
        for i in range(powers.shape[0] - 2, -1, -1):
            total = powers[i] + theta * total
        return step.u + step.h[:, None] * theta * total

    return at


def interpolant_slope(tableau: Tableau, k: Array, theta: Array) -> Array:
    """Time derivative of the continuous extension at fractions ``theta``, shape ``(..., n)``."""
    return jnp.sum(tableau.dense_slopes(theta)[..., None] * k, -2)
