"""Derivatives of solves that failed: NaN, but zero where nothing depends on them.

A lane is *unused* if its cotangents are all exactly zero, as those of a lane that a loss leaves out are:
``jnp.where(ok, us, 0)``. It has no share in any gradient, so that a population can be fitted though the solves of some fail.
What came of a lane that failed can be anything, and zero times NaN is NaN: where a cotangent is summed over lanes at once,
lanes that failed and unused ones stand at the start of another lane, without steps, saves and events.
"""

from __future__ import annotations

from typing import Any, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..solvers.buffers import where_lanes
from ..solvers.forward import ForwardArgs
from ..solvers.integrate import RetCode
from ..solvers.record import Result, lane_axes
from ..solvers.undefined import nan_derivative
from .reverse import Cotangents


def has_failed(result: Result) -> Array:
    return result.outcome.status > RetCode.Terminated


def unused_lanes(cotangents: Cotangents) -> Array:
    """Lanes on which all cotangents are zero, ``(B,)``."""
    rows = (cotangents.saves, cotangents.left, cotangents.right, cotangents.time[..., None])
    zero = [jnp.all(x == 0, (0, -1)) for x in rows if x.size]
    return jnp.all(jnp.stack([*zero, jnp.all(cotangents.end == 0, -1), cotangents.end_time == 0]), 0)


def replace_lanes(
    idle: Array, args: ForwardArgs, theta: tuple, shared: tuple[bool, ...], result: Result
) -> tuple[ForwardArgs, tuple, Result]:
    """A solve whose lanes ``idle (B,)`` are at the start of one that is not: the gradient needs its derivatives anyway."""
    donor = jnp.argmin(idle)

    def other(x: Any) -> Any:
        return None if x is None else where_lanes(~idle, x, x[donor])

    args = args._replace(u0=other(args.u0), schedule=args.schedule._replace(t0=other(args.schedule.t0)))
    theta = tuple(x if alike else other(x) for x, alike in zip(theta, shared, strict=True))
    none = lambda part: part._replace(count=jnp.where(idle, 0, part.count))  # noqa: E731
    outcome = result.outcome._replace(u=other(result.outcome.u), params=other(result.outcome.params))
    return args, theta, result._replace(saves=none(result.saves), events=none(result.events), outcome=outcome)


@jax.custom_jvp
def overwrite(xs: Sequence[Array], where: Sequence[Array], values: Sequence[Array]) -> list[Array]:
    """``xs``, and their derivatives too, with ``values`` on the entries ``where``; each broadcast to its x."""
    return [jnp.where(w, v.astype(x.dtype), x) for x, w, v in zip(xs, where, values, strict=True)]


@overwrite.defjvp
def _overwrite_jvp(primals, tangents):
    xs, where, values = primals
    return overwrite(xs, where, values), overwrite(tangents[0], where, values)


def finish_gradients(grads: list[Array], of_lanes: list[bool], failed: Array, unused: Array) -> list[Array]:
    """Cotangents of arguments, NaN for the lanes ``failed`` that are used; ``of_lanes``: which have lanes in front."""
    used = failed & ~unused
    own = used | unused, jnp.where(used, np.nan, 0.0)
    total = jnp.any(used) | jnp.all(unused), jnp.where(jnp.any(used), np.nan, 0.0)

    def masks(x: Array, lanes: bool) -> list[Array]:
        return [m.reshape((-1,) + (1,) * (x.ndim - 1)) for m in own] if lanes else list(total)

    pairs = [masks(x, lanes) for x, lanes in zip(grads, of_lanes, strict=True)]
    return overwrite(grads, [where for where, _ in pairs], [value for _, value in pairs])


def without_gradient_if_failed(result: Result) -> Result:
    """Derivatives of a solve that failed are NaN, also those of rows that it reached."""
    leaves, tree = jax.tree.flatten(result)
    axes = jax.tree.leaves(lane_axes(result))
    moving = [i for i, x in enumerate(leaves) if axes[i] >= 0 and jnp.issubdtype(x.dtype, jnp.inexact)]
    marked = nan_derivative(tuple(axes[i] for i in moving), has_failed(result), [leaves[i] for i in moving])
    for i, x in zip(moving, marked, strict=True):
        leaves[i] = x
    return tree.unflatten(leaves)
