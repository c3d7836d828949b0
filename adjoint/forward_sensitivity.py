"""ForwardSensitivity: tangents are integrated alongside the state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from .sensealg import SensitivityMethod


@dataclass(frozen=True)
class ForwardSensitivity(SensitivityMethod):
    """Derivatives along tangents ``S = du/dm`` of the input numbers ``m``, carried by the steps of the solve itself.

    ``jax.jvp`` and ``jax.jacfwd`` work, and so does ``jax.grad``, which takes a tangent for every number that went in.
    Exact for the numbers that the solve returned, like `DiscreteAdjoint`.

    Cost: ``jax.jvp``: about three solves; a gradient: one solve with tangents for every 64 numbers; memory O(n m). Best
    for few parameters. ``vjp`` is not used. Source: Hairer, Norsett & Wanner, Solving ODEs I, section I.14.
    """

    kind: ClassVar[Literal["reverse", "forward", "direct"]] = "forward"
