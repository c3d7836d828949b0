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

from ..solvers.forward import ForwardOptions, run_forward
from ..solvers.forward_walk import empty_steps
from ..solvers.integrate import RetCode
from ..solvers.lanes import LaneContext, LaneFunction, Level, Out, call_lanes
from ..solvers.record import Steps, lane_axes, record_rows
from ..solvers.system import System
from ..solvers.tiles import Tiling
from .calls import Calls
from .diagnostics import ReverseInfo, finish_info
from .reverse import Cotangents, Reverse, TimeCotangents
from .sensealg import SensitivityMethod


class ReverseMode:
    """The recording forward pass and the reverse pass of one method."""

    def __init__(self, calls: Calls, options: ForwardOptions, method: SensitivityMethod, plain: Callable):
        self.calls, self.method, self.plain = calls, method, plain
        self.recording = recording_options(calls.system, options, method)
        self.plain_tree = calls.tree(options)
        self.recorder = recorder_of(calls, options, self.recording, method)
        self._reversers: dict = {}

    def reverser(self, base: int, wanted: tuple[int, ...]) -> LaneFunction:
        key = (base, wanted)
        if key not in self._reversers:
            self._reversers[key] = reverse_function(self.calls, self.recording, self.method, base, wanted)
        return self._reversers[key]

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


def replays_tiles(system: System, options: ForwardOptions, method: SensitivityMethod) -> bool:
    """Whether there is no record of more than one lane: where they are taken in tiles, the reverse pass makes it anew."""
    return system.tiles and method.replays_tiles and not options.everystep


def recorder_of(
    calls: Calls, options: ForwardOptions, recording: ForwardOptions, method: SensitivityMethod
) -> LaneFunction:
    """The forward solve with its record, of zeros where nobody reads it."""
    recorder = calls.forward(recording)
    if not replays_tiles(calls.system, recording, method):
        return recorder
    plain = calls.forward(options._replace(record=False, dense=False))

    def run(context: LaneContext, scratch: tuple, *flat):
        return plain.run(context, *flat), scratch

    def finish(lanes: int, results: list) -> list:
        return [*results, *jax.tree.leaves(empty_steps(calls.system, recording, lanes, calls.system.size))]

    return replace(recorder, tiling=Tiling(run, finish=finish))


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


def reverse_function(
    calls: Calls,
    options: ForwardOptions,
    method: SensitivityMethod,
    base: int,
    wanted: tuple[int, ...],
    watch: bool = False,
) -> LaneFunction:
    """``(arguments, results of the recorder, cotangents) -> cotangents of the arguments at ``wanted``.

    With ``watch`` the fields of a `ReverseInfo` follow.
    """
    system, index, tree = calls.system, calls.index, calls.tree(options)
    schedule = index.schedule
    record = calls.flat_count + tree.unflatten(range(tree.num_leaves)).steps.t
    need_times = any(i in wanted for i in (schedule.t0, schedule.t1, schedule.stops, schedule.saves))
    diff = tuple(i for i in calls.diff if calls.args_count + i in wanted)
    record_axes = tuple(max(a, 0) for a in jax.tree.leaves(lane_axes(calls.template(options))))
    in_axes = (0,) * calls.flat_count + record_axes + (1, 1, 1, 1, 0, 0)
    record_lanes = tuple(out.axis is not None for out in calls.outs(options))
    lane_args = calls.lane_args + record_lanes + (True,) * 6

    def run(context: LaneContext, *flat):
        return backwards(context, *flat)[0]

    def backwards(context: LaneContext, *flat, scratch: Steps | None = None):
        """Cotangents, and the record, which overwrites ``scratch`` where it is made here."""
        args, theta = calls.split(flat)
        shared = context.shared[calls.args_count : calls.flat_count]
        after = calls.flat_count + tree.num_leaves
        result = tree.unflatten(flat[calls.flat_count : after])
        if replays and context.size > 1 and not context.shared[record]:
            result = run_forward(system, options, context, args, theta, shared, steps=scratch)
        reverse = Reverse(
            system,
            options,
            context,
            args,
            theta,
            shared,
            result,
            Cotangents(*flat[after:]),
            diff,
            need_times,
            watch,
        )
        costate = method.reverse(reverse)
        # a solve that failed has no gradient
        failed = (result.outcome.status > RetCode.Terminated) | costate.failed
        any_failed = jnp.any(failed)

        def poison(x, axis: int | None = 0):
            if axis is None:
                return jnp.where(any_failed, jnp.full_like(x, jnp.nan), x)
            return jnp.where(failed.reshape((-1,) + (1,) * (x.ndim - 1)), jnp.full_like(x, jnp.nan), x)

        times: TimeCotangents = costate.times
        cotangents = {
            index.u0: poison(costate.lam),
            schedule.t0: poison(times.t0),
            schedule.t1: jnp.zeros_like(times.t0),
            schedule.stops: poison(times.stops.T),
            schedule.saves: poison(times.saves.T),
        }
        for i, leaf, axis in zip(diff, reverse.finish_mu(costate.mu), reverse.axes, strict=True):
            cotangents[calls.args_count + i] = poison(leaf, axis)
        info = finish_info(costate.info, result, failed, times.t0.dtype) if watch else ()
        return [*(cotangents[i] for i in wanted), *info], result.steps

    def tile(context: LaneContext, scratch: Steps, *flat):
        results, steps = backwards(context, *flat, scratch=scratch)
        return results, scratch if context.shared[record] else steps

    replays = replays_tiles(system, options, method)
    components = system.size
    scratch = lambda lanes: empty_steps(system, options, lanes, components)  # noqa: E731
    outs = tuple(Out(0, i) for i in wanted) + (Out(0),) * (len(ReverseInfo._fields) if watch else 0)
    return LaneFunction(run, in_axes, lane_args, outs, base, tiling=Tiling(tile, scratch) if replays else None)
