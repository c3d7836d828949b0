"""DiscreteAdjoint: the exact transpose of the Runge-Kutta steps that were taken (see `transpose`).

Exact for the numbers that the solve returned, at any tolerance. Cost: about two solves, whatever the number of saves.
Memory: the recorded steps, or checkpoints; where many lanes are taken in tiles (`solvers.tiles`) the record of one tile, whose
steps the reverse pass takes again. Source: Hager, Runge-Kutta methods in optimal control and the transformed
adjoint system, Numer. Math. 87 (2000) 247-282.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..solvers.system import System
from .checkpoints import Checkpoints, checkpoints_of_number, plan_checkpoints
from .chunks import Chunks, chunk_rows
from .reverse import Reverse
from .sensealg import Costate, SensitivityMethod
from .stretches import Stretches, rows_of

STATES = 144, 512  # the fewest and the most kept by default, unless all are: most solves take no more steps
RECORD = 2**16  # bytes of those between
SMALL_RECORD = 135 * 2**10  # bytes of states that are all kept: then there is no code to take steps again
SLOPES = 2**20, 2**17  # bytes of slopes that are kept, of all steps or not, to spare a single lane their evaluation


@dataclass(frozen=True)
class DiscreteAdjoint(SensitivityMethod):
    """The exact transpose of the recorded steps; the default method.

    chunk: the most steps whose stages and parameter products are batched together, a power of two up to 32.
    memory: bytes that the recorded states of a trajectory may take; None for all of them where they are small
    (`SMALL_RECORD`), else `RECORD`, but not fewer or more than `STATES`. A solve with more steps keeps states at
    checkpoints, and takes the steps between again, a block at a time: one more forward solve. checkpoints: the most states
    kept, in place of what ``memory`` allows.
    """

    chunk: int = 32
    memory: int | None = None
    checkpoints: int | None = None

    replays_tiles = True

    def plan(self, system: System, rows: int) -> Checkpoints | None:
        block, state_bytes = chunk_rows(self.chunk, system.size), system.size * system.dtype.itemsize
        if self.memory is not None and self.checkpoints is None:
            return plan_checkpoints(rows, state_bytes, 1, block, self.memory)
        whole = rows * state_bytes <= SMALL_RECORD
        usual = rows if whole else int(np.clip(RECORD // max(state_bytes, 1), *STATES))
        return checkpoints_of_number(rows, usual if self.checkpoints is None else self.checkpoints, block)

    def slopes_of_one(self, system: System, rows: int, slots: int | None) -> bool:
        state_bytes, most = system.size * system.dtype.itemsize, SLOPES[slots is not None]
        size = (rows if slots is None else slots) * (system.tableau.stages + 1) * state_bytes
        return system.light is None and size <= most and (slots is None or self.memory is None)

    def reverse(self, problem: Reverse) -> Costate:
        rows = rows_of(problem)
        return (Chunks(problem, self.chunk) if rows is None else Stretches(problem, rows)).run()
