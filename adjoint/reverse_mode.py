"""Derivatives of a solve by a sensitivity method's reverse pass.

Under grad the forward pass leaves its record, and the method carries the cotangents back in a lane function of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad

from ..solvers.forward import ForwardOptions
from ..solvers.lanes import LaneContext, LaneFunction, Level, Out, call_lanes
from ..solvers.record import empty_steps, record_rows
from ..solvers.system import System
from ..solvers.tiles import Tiling
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
        #: of many lanes in tiles there is no record: the reverse pass makes it anew, a tile at a time
        self.replays = calls.system.tiles and method.replays_tiles and not (options.record or options.everystep)
        self.recorder = calls.forward(self.recording)
        slopes = method.slopes_of_one(calls.system, record_rows(options.max_steps))
        #: the slopes of a single lane are recorded, of several lanes they would take much memory
        self.slopes_of_one = slopes and not self.recording.dense and self.recording.slots is None and not options.record
        if self.slopes_of_one:
            with_slopes = self.recording._replace(dense=True)
            self.recorder = self._with_slopes_of_one(with_slopes, self.recorder)
            self.recording = with_slopes
        if self.replays:
            self.recorder = replace(self.recorder, tiling=self._without_record(calls.forward(options)))
        self._reversers: dict = {}

    def reverser(self, base: int, wanted: tuple[int, ...]) -> LaneFunction:
        key = (base, wanted)
        if key not in self._reversers:
            self._reversers[key] = reverse_function(
                self.calls,
                self.recording,
                self.method,
                base,
                wanted,
                replays=self.replays,
                slopes_of_one=self.slopes_of_one,
            )
        return self._reversers[key]

    def _with_slopes_of_one(self, options: ForwardOptions, without: LaneFunction) -> LaneFunction:
        """The solve that records by ``options``; of several lanes ``without``, and zeros for slopes, which nobody reads."""
        calls, tree, alone = self.calls, self.calls.tree(self.recording), self.calls.forward(options)

        def run(context: LaneContext, *flat):
            if context.size == 1:
                return alone.run(context, *flat)
            result = tree.unflatten(without.run(context, *flat))
            empty = empty_steps(calls.system, options, context.size, calls.system.size)
            return jax.tree.leaves(result._replace(steps=result.steps._replace(k=empty.k)))

        return replace(alone, run=run, outline=None)

    def _without_record(self, plain: LaneFunction) -> Tiling:
        """The plain solve, and zeros for a record that nobody reads."""

        def run(context: LaneContext, scratch: tuple, *flat):
            return plain.run(context, *flat), scratch

        def finish(lanes: int, results: list) -> list:
            system = self.calls.system
            return [*results, *jax.tree.leaves(empty_steps(system, self.recording, lanes, system.size))]

        return Tiling(run, finish=finish)

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
