"""The transposed sweep row by row, from one event to the next: for light systems, and for compact ones."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from .array_rows import ArrayRows
from .component_rows import ComponentRows
from .replay import Block
from .reverse import Reverse
from .stage_rows import Rows, StageRows
from .transpose import Sweep, Transpose


class Stretches(Transpose):
    """``rows`` transposes a row."""

    def __init__(self, reverse: Reverse, rows: StageRows):
        super().__init__(reverse)
        self.rows = rows

    def begin(self, sweep: Sweep) -> Sweep:
        return self.events(self.rows.prepare(sweep)._replace(row=sweep.row - 1))

    def end(self, sweep: Sweep) -> Sweep:
        return self.rows.complete(sweep)

    def some(self, sweep: Sweep, block: Block) -> Sweep:
        """Transpose the rows down to the next event."""

        def clear(c: Rows) -> Array:
            return (c.row >= block.first) & ~jnp.any(self.event_here(c.row, sweep.event))

        def transpose(c: Rows) -> Rows:
            return self.rows.row(c, block, sweep.p)

        rows = lax.while_loop(clear, transpose, self.rows.first(sweep))
        sweep = sweep._replace(row=rows.row, save=rows.save, lam=rows.lam.T, kbar=rows.kbar.T, seen=rows.seen)
        return self.events(self.rows.end(sweep, rows.mu))


def rows_of(reverse: Reverse) -> StageRows | None:
    """How rows are transposed one by one; None where chunks are better."""
    # parameters that change at events are not split into numbers
    if reverse.system.light is not None and reverse.system.param_size is None:
        return ComponentRows(reverse)
    return ArrayRows(reverse) if reverse.compact else None
