"""How a solve is laid out as flat arguments and results of a lane function."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Callable

import jax

from ..solvers.forward import ForwardOptions, run_forward
from ..solvers.lanes import LaneContext, LaneFunction, Out
from ..solvers.record import EventLog, Outcome, Result, Saves, Steps, lane_axes
from ..solvers.system import System
from ..solvers.tiles import Tiling


@dataclass(frozen=True, eq=False)
class Calls:
    """One system and the layout of its arguments: the leaves of `ForwardArgs`, then ``theta``.

    args_tree: treedef of `ForwardArgs`. diff: positions in ``theta`` that are differentiated.
    """

    system: System
    args_tree: Any
    theta_count: int
    diff: tuple[int, ...]

    @property
    def args_count(self) -> int:
        return self.args_tree.num_leaves

    @property
    def flat_count(self) -> int:
        return self.args_count + self.theta_count

    @property
    def lane_args(self) -> tuple[bool, ...]:
        return (True,) * self.args_count + (False,) * self.theta_count

    @property
    def index(self) -> Any:
        """`ForwardArgs` with the position of each leaf in its place."""
        return self.args_tree.unflatten(range(self.args_count))

    @property
    def wanted(self) -> tuple[int, ...]:
        """Positions of the arguments that get a cotangent, in order."""
        index, schedule = self.index, self.index.schedule
        own = {index.u0, schedule.t0, schedule.t1, schedule.stops, schedule.saves}
        return tuple(sorted(own | {self.args_count + i for i in self.diff}))

    def split(self, flat) -> tuple[Any, tuple]:
        """``(ForwardArgs, theta)`` from the first arguments of ``flat``."""
        return self.args_tree.unflatten(flat[: self.args_count]), tuple(flat[self.args_count : self.flat_count])

    def template(self, options: ForwardOptions) -> Result:
        """A result with True in place of each array that will be there."""
        here: Any = True
        params = here if self.system.param_size is not None else None
        steps = None
        if options.record:
            slopes, theta = here if options.dense else None, here if self.system.has_roots else None
            steps = Steps(here, here, here, here, slopes, theta, None if options.slots is None else here)
        return Result(
            Saves(here, here, here, here, here),
            EventLog(here, here, here, here, here, here, here, here, here, params),
            Outcome(here, here, here, here, here, params, here, here, here),
            steps,
        )

    def tree(self, options: ForwardOptions) -> Any:
        return jax.tree.structure(self.template(options))

    def outs(self, options: ForwardOptions, alone: tuple[str, ...] = ()) -> tuple[Out, ...]:
        """``alone``: fields of the record that only a single lane has; see `lane_axes`."""
        axes = jax.tree.leaves(lane_axes(self.template(options), alone))
        return tuple(Out(None if a == -1 else a) for a in axes)

    def forward(
        self, options: ForwardOptions, derivative: Callable | None = None, mark: Callable | None = None
    ) -> LaneFunction:
        """The forward solve; ``mark`` is applied to its result."""

        def run(context: LaneContext, *flat, outline: bool = False):
            args, theta = self.split(flat)
            shared = context.shared[self.args_count :]
            result = run_forward(self.system, options, context, args, theta, shared, outline)
            return jax.tree.leaves(result if mark is None else mark(result))

        outline = partial(run, outline=True) if self.system.pure else None
        in_axes, outs = (0,) * self.flat_count, self.outs(options)
        tiling = Tiling(lambda context, scratch, *flat: (run(context, *flat), scratch))
        tiles = self.system.tiles and not options.record and not options.everystep
        return LaneFunction(
            run, in_axes, self.lane_args, outs, derivative=derivative, outline=outline, tiling=tiling if tiles else None
        )
