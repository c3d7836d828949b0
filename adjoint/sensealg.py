"""The protocol of a sensitivity method.

A method is a small frozen object. The solve asks it what the forward pass must keep, and hands it a `Reverse`, which
holds the record and the cotangents; the method returns the cotangent of the initial state and of the parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from jax import Array

from .checkpoints import Checkpoints, plan_checkpoints

if TYPE_CHECKING:
    from ..solvers.system import System
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
    #: of many lanes in tiles the record is not kept: the reverse pass of a tile takes its steps again
    replays_tiles = False
    #: the reverse pass solves the state backwards, and compares it with the recorded one where it can
    reconstructs_state = False

    def plan(self, system: System, rows: int) -> Checkpoints | None:
        """Which of ``rows`` recorded states to keep; None for all of them."""
        return None

    def slopes_of_one(self, system: System, rows: int, slots: int | None) -> bool:
        """Whether slopes are recorded too, of ``rows`` steps or of the ``slots`` kept, where there is a single lane."""
        return False

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


@dataclass(frozen=True)
class DenseAdjoint(ContinuousAdjoint):
    """Base of the continuous methods that read u(t) from the forward solve's dense output.

    checkpointing: the record is held within ``memory`` bytes for each trajectory; steps whose state was not kept are
    taken again, a block at a time, which costs one more forward solve.
    """

    checkpointing: bool = False
    memory: int = 2**30

    records_slopes = True

    def plan(self, system: System, rows: int) -> Checkpoints | None:
        if not self.checkpointing:
            return None
        return plan_checkpoints(rows, system.size * system.dtype.itemsize, system.tableau.stages + 2, 1, self.memory)
