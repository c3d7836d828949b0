"""Derivatives of a solve by a sensitivity method's reverse pass.

Under grad the forward pass leaves its record, and the method carries the cotangents back in a lane function of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad

from ..solvers.forward import ForwardOptions
from ..solvers.lanes import LaneContext, LaneFunction, Level, Out, call_lanes
from ..solvers.record import empty_steps, of_one_lane, record_rows
from ..solvers.system import System
from .calls import Calls
from .reverse import Cotangents
from .reverse_function import reverse_function
from .sensealg import SensitivityMethod


class ReverseMode:
    """The recording forward pass and the reverse pass of one method."""

    def __init__(self, calls: Calls, options: ForwardOptions, method: SensitivityMethod, plain: Callable):
        self.calls, self.method, self.plain = calls, method, plain
        self.recording = recording_options(calls.system, options, method)
        self.plain_tree = calls.tree(options)
        self.recorder = calls.forward(self.recording)
        #: fields of the record that only a single lane has
        self.alone: tuple[str, ...] = ()
        if calls.system.tiles and method.replays_tiles and not (options.record or options.everystep):
            # in tiles: the reverse pass makes the record anew, a tile at a time
            here = calls.template(self.recording).steps
            self.alone = tuple(f for f in ("t", "h", "u", "k", "theta") if getattr(here, f) is not None)
            self.recorder = self._with_record_of_one(options)
        elif self._has_slopes_of_one(options):
            # of several lanes they would take much memory
            self.alone, without = ("k",), self.recording
            self.recording = without._replace(dense=True)
            self.recorder = self._with_record_of_one(without)
        self._reversers: dict = {}

    def reverser(self, base: int, wanted: tuple[int, ...]) -> LaneFunction:
        key = (base, wanted)
        if key not in self._reversers:
            self._reversers[key] = reverse_function(
                self.calls, self.recording, self.method, base, wanted, alone=self.alone
            )
        return self._reversers[key]

    def _has_slopes_of_one(self, options: ForwardOptions) -> bool:
        rows = record_rows(options.max_steps)
        wanted = self.method.slopes_of_one(self.calls.system, rows, self.recording.slots)
        return wanted and not self.recording.dense and not options.record

    def _with_record_of_one(self, without: ForwardOptions) -> LaneFunction:
        """The solve that records; of several lanes that by ``without``, and zeros for what only a single lane records."""
        calls, options, fields = self.calls, self.recording, self.alone
        one, several = calls.forward(options), calls.forward(without)

        def of_several(found: Sequence[Any]) -> list[Any]:
            result = calls.tree(without).unflatten(found)
            empty = of_one_lane(empty_steps(calls.system, options, 1, calls.system.size), fields)
            steps = empty if result.steps is None else result.steps._replace(**{f: getattr(empty, f) for f in fields})
            return jax.tree.leaves(result._replace(steps=steps))

        def run(context: LaneContext, *flat):
            if context.size != 1:
                return of_several(several.run(context, *flat))
            result = calls.tree(options).unflatten(one.run(context, *flat))
            return jax.tree.leaves(result._replace(steps=of_one_lane(result.steps, fields)))

        tiling = several.tiling and replace(several.tiling, finish=lambda lanes, found: of_several(found))
        return replace(one, run=run, outs=calls.outs(options, fields), outline=None, tiling=tiling)

    def derivative(self, levels: tuple[Level, ...], primals, tangents):
        """The jvp rule of the plain forward function: linear, and with a transpose that is the method's."""
        # what is held fixed gets no cotangent, and costs none
        wanted = tuple(i for i in self.calls.wanted if type(tangents[i]) is not ad.Zero)
        backward = self.reverser(len(levels), wanted)

        @jax.custom_vjp
        def solve(*flat):
            return self.plain(*flat, levels=levels)

        def solve_forward(*flat):
            outs = call_lanes(self.recorder, *flat, levels=levels)
            return outs[: self.plain_tree.num_leaves], (flat, outs)

        def solve_backward(residuals, bars):
            flat, outs = residuals
            bars = tuple(cotangents_of(self.plain_tree.unflatten(bars)))
            mapped = _mapped(levels, len(flat), self.recorder.outs, len(bars))
            back_levels = tuple(Level(v.size, m) for v, m in zip(levels, mapped, strict=True))
            grads = dict(zip(wanted, call_lanes(backward, *flat, *outs, *bars, levels=back_levels), strict=True))
            return tuple(grads.get(i) for i in range(self.calls.flat_count))

        solve.defvjp(solve_forward, solve_backward)
        dots = [_instantiate(x, t) for x, t in zip(primals, tangents, strict=True)]
        return jax.jvp(solve, tuple(primals), tuple(dots))


def recording_options(system: System, options: ForwardOptions, method: SensitivityMethod) -> ForwardOptions:
    """``options`` with what ``method`` needs of the record."""
    recording = options._replace(
        record=options.record or method.records_steps, dense=options.dense or method.records_slopes
    )
    plan = method.plan(system, record_rows(options.max_steps)) if recording.record and not options.record else None
    return recording if plan is None else recording._replace(dense=False, **plan._asdict())


def cotangents_of(result: Any) -> Cotangents:
    """The cotangents that a reverse pass reads, from those of a whole result."""
    events, outcome = result.events, result.outcome
    return Cotangents(result.saves.u, events.left, events.right, events.time, outcome.u, outcome.t)


def _instantiate(primal, tangent):
    if type(tangent) is not ad.Zero:
        return tangent
    if jnp.issubdtype(jnp.result_type(primal), jnp.inexact):
        return jnp.zeros(jnp.shape(primal), jnp.result_type(primal))
    return np.zeros(jnp.shape(primal), jax.dtypes.float0)


def _mapped(levels, flat_count: int, outs: tuple[Out, ...], bars: int):
    """Which arguments of the reverse function carry each level: residuals and cotangents carry all of them."""
    residuals = tuple(out.axis is not None for out in outs)
    return [level.mapped[:flat_count] + residuals + (True,) * bars for level in levels]
