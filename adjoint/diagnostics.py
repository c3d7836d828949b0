"""What a reverse pass tells of itself, when it is asked: its work, how it ended, how large lam grew.

Nothing here costs anything otherwise: what is watched stands in the carry of the reverse loop only where it is wanted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..solvers.integrate import RetCode, State
from ..solvers.record import Result
from .reverse import Reverse


class ReverseInfo(NamedTuple):
    """One number for each lane, ``(B,)``."""

    accepted: Array
    rejected: Array
    evaluations: Array
    status: Array
    trouble: Array  # `Jumped.trouble`
    largest: Array  # the largest |lam_i|
    reconstruction: Array  # NaN where the state is not solved backwards


class Seen(NamedTuple):
    """Maxima along a reverse solve, ``(B,)`` each; None where not asked for."""

    largest: Array | None
    reconstruction: Array | None


def first_look(lanes: int, dtype: Any, watch: bool, compare: bool) -> Seen | None:
    """Before anything was seen; None where nothing is to be."""
    none = jnp.zeros(lanes, dtype)
    return Seen(none if watch else None, none if compare else None) if watch or compare else None


def see_lam(seen: Any, lam: Array, on: Array) -> Any:
    """``seen`` with ``lam (B, n)`` on the lanes ``on`` taken in."""
    if seen is None or seen.largest is None:
        return seen
    return seen._replace(largest=_higher(seen.largest, jnp.max(jnp.abs(lam), -1, initial=0), on))


def see_state(seen: Any, u: Array, recorded: Array, on: Array, rtol: Array, atol: Array) -> Any:
    """``seen`` with the distance of ``u (B, n)`` from ``recorded``, in units of ``atol + rtol |recorded|``, taken in."""
    if seen is None or seen.reconstruction is None:
        return seen
    scale = atol[:, None] + rtol[:, None] * jnp.abs(recorded)
    return seen._replace(reconstruction=_higher(seen.reconstruction, jnp.max(jnp.abs(u - recorded) / scale, -1, initial=0), on))


def _higher(old: Array, new: Array, on: Array) -> Array:
    return jnp.where(on, jnp.maximum(old, new.astype(old.dtype)), old)


def info_of_solve(state: State, seen: Seen | None, trouble: Array, bad: Array) -> ReverseInfo | None:
    """Of a reverse solve that ended in ``state``; ``bad``: lanes whose parameter integral failed."""
    if seen is None:
        return None
    missing = jnp.full_like(state.t, jnp.nan)
    largest, reconstruction = (missing if x is None else x for x in seen)
    status = jnp.where((state.status == RetCode.Success) & bad, RetCode.ReverseFailed, state.status)
    return ReverseInfo(state.accepted, state.rejected, state.evaluations, status, trouble, largest, reconstruction)


def info_of_transpose(reverse: Reverse, seen: Seen | None, lam: Array, trouble: Array) -> ReverseInfo | None:
    """Of the transposed record; all its rows are, those of rejected attempts (of length zero) too."""
    if seen is None or seen.largest is None:
        return None
    result, bars = reverse.result, reverse.cotangents
    # rows enter the steps that hold them; those at the end are all of lam there
    slots = jnp.arange(result.saves.t.shape[0], dtype=np.int32)[:, None]
    at_end = (slots < result.saves.count) & (result.saves.t == result.outcome.t)
    end = bars.end + jnp.sum(jnp.where(at_end[..., None], bars.saves, 0), 0)
    largest = see_lam(seen, end[:, : reverse.components], jnp.ones_like(trouble, bool)).largest
    steps, events, stages = result.steps, result.events.count, reverse.tableau.stages
    rows, accepted = steps.count + 1, jnp.sum(steps.h != 0, 0, dtype=np.int32)
    # slope 0 of a row is pulled back to see lam; where no Jacobians are formed, once more at every restart
    pulled = rows * (stages + 1) + (0 * events if reverse.small else events + 1)
    status = jnp.where(jnp.all(jnp.isfinite(lam), -1), RetCode.Success, RetCode.NonFinite)
    missing = jnp.full_like(largest, jnp.nan)
    return ReverseInfo(accepted, jnp.zeros_like(accepted), pulled, status, trouble, largest, missing)


def finish_info(info: ReverseInfo | None, result: Result, failed: Array, dtype: Any) -> ReverseInfo:
    """With the final status; a method that tells nothing gets -1 and NaN."""
    lanes = failed.shape[0]
    if info is None:
        untold, nan = jnp.full(lanes, -1, np.int32), jnp.full(lanes, jnp.nan, dtype)
        info = ReverseInfo(untold, untold, untold, jnp.full(lanes, RetCode.Success), jnp.zeros(lanes, np.int32), nan, nan)
    forward, trouble = result.outcome.status, info.trouble
    status = jnp.where(trouble > 0, jnp.where(trouble % 2 == 1, RetCode.Grazing, RetCode.ReverseFailed), info.status)
    status = jnp.where(failed & (status <= RetCode.Terminated), RetCode.ReverseFailed, status)
    status = jnp.where(forward > RetCode.Terminated, forward, status).astype(np.int32)
    return info._replace(status=status)
