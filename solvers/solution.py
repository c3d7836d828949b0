"""What a solve returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
from jax import Array

from .integrate import RetCode


class SolveError(RuntimeError):
    """A solve outside jit did not reach its end; ``retcode`` says why."""

    def __init__(self, message: str, retcode: RetCode):
        super().__init__(message)
        self.retcode = retcode


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Stats:
    """Work of the forward solve: attempts that passed and failed, and right-hand-side evaluations."""

    accepted: Array
    rejected: Array
    evaluations: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Events:
    """The event log in order, padded with inf and -1."""

    times: Array
    callback: Array
    component: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Solution:
    """Rows in the order of integration.

    ts: ``(T,)``, times; inf on padding rows. us: ``(T, ...)`` in the structure of u0; NaN on padding rows.
    sides: ``(T,)``, -1 for a left limit of an event, +1 for a right limit, 0 for neither.
    valid: ``(T,)``, False on padding rows. retcode: see `RetCode`. events: `Events`. stats: `Stats`.
    cost: the integral of ``running_cost``, or None.
    """

    ts: Array
    us: Any
    sides: Array
    valid: Array
    retcode: Array
    stats: Stats
    events: Events
    cost: Array | None = None
    extension: Any = None

    def __call__(self, t: Any) -> Any:
        """The state at times ``t`` within the span, from dense output; at an event, the left limit."""
        if self.extension is None:
            raise ValueError("This solution has no dense output: ask for it with solve(..., dense=True).")
        return self.extension(t)

    def __repr__(self) -> str:
        shapes = jax.tree.map(lambda x: x.shape, self.us)
        return f"Solution(ts={self.ts.shape}, us={shapes}, retcode={self.retcode})"
