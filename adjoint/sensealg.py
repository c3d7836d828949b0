"""The protocol of a sensitivity method.

A method is a small frozen object. The solve asks it what the forward pass must keep, and hands it a `Reverse`, which
holds the record and the cotangents; the method returns the cotangent of the initial state and of the parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from jax import Array

if TYPE_CHECKING:
    from .diagnostics import ReverseInfo
    from .reverse import Reverse


class Costate(NamedTuple):
    """Result of a reverse pass at t0, before any initial event.

    lam: ``(B, n)``. mu: cotangents of the parameters (`Reverse.zero_mu`). times: `TimeCotangents`.
    failed: ``(B,)``, lanes whose reverse solve did not reach its end. trouble: ``(B,)``, the event that has no
    gradient, if one was met: `Jumped.trouble`. info: `ReverseInfo`, where `Reverse.watch` asks for it.
    """

    lam: Array
    mu: Any
    times: Any
    failed: Array
    trouble: Any = None
    info: ReverseInfo | None = None


@dataclass(frozen=True)
class SensitivityMethod:
    """Base of all methods. ``vjp``: a VJP backend, None for the problem's own or `JaxVJP`."""

    vjp: Any = None

    #: "reverse": `reverse` carries cotangents back; else the loop itself is differentiated, along tangents ("forward")
    #: or by JAX's reverse mode ("direct")
    kind: ClassVar[Literal["reverse", "forward", "direct"]] = "reverse"
    #: the forward pass records its steps
    records_steps = True
    #: ... and their slopes, for dense output
    records_slopes = False
    #: the reverse pass solves the state backwards, and compares it with the recorded one where it can
    reconstructs_state = False

    def reverse(self, problem: Reverse) -> Costate:
        """Carry the cotangents of ``problem`` back to t0."""
        raise NotImplementedError


@dataclass(frozen=True)
class ContinuousAdjoint(SensitivityMethod):
    """Base of the methods that solve the adjoint equation as an ODE of its own.

    rtol, atol: tolerances of the reverse solve, the forward ones by default. max_steps: attempts of the reverse solve,
    four times the forward ones by default.
    """

    rtol: float | None = None
    atol: float | None = None
    max_steps: int | None = None
