"""DirectAdjoint: JAX differentiates the loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from .sensealg import SensitivityMethod


@dataclass(frozen=True)
class DirectAdjoint(SensitivityMethod):
    """`jax.grad` of a loop of ``max_steps`` iterations; also `jax.jvp`, and any composition of both.

    An independent check of the other methods: nothing in it is written by hand but the derivative of an event's time.
    Exact for the numbers that the solve returned.

    *Restriction.* The zero of a solve that failed and that a loss leaves out (see the guide) may be NaN here, where a number
    that is not finite came up in the loop.

    Cost: all ``max_steps`` iterations are kept and walked through, used or not: give a small ``max_steps``. ``vjp`` is
    used for the right-hand side, as everywhere.
    """

    kind: ClassVar[Literal["reverse", "forward", "direct"]] = "direct"
