"""The reverse pass of a sensitivity method as a function over lanes."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..solvers.forward import ForwardOptions, run_forward
from ..solvers.lanes import LaneContext, LaneFunction, Out
from ..solvers.record import Steps, empty_steps, lane_axes, on_lanes
from ..solvers.tiles import Tiling
from .calls import Calls
from .diagnostics import ReverseInfo, finish_info
from .failed_lanes import finish_gradients, has_failed, replace_lanes, unused_lanes
from .reverse import Cotangents, Reverse, TimeCotangents
from .sensealg import SensitivityMethod


def reverse_function(
    calls: Calls,
    options: ForwardOptions,
    method: SensitivityMethod,
    base: int,
    wanted: tuple[int, ...],
    watch: bool = False,
    alone: tuple[str, ...] = (),
) -> LaneFunction:
    """``(arguments, results of the recorder, cotangents) -> cotangents of the arguments at ``wanted``.

    With ``watch`` the fields of a `ReverseInfo` follow. ``alone``: fields of the record that only a single solve has. Without
    slopes the stages are evaluated again; without all of it the steps are taken again.
    """
    system, index, tree = calls.system, calls.index, calls.tree(options)
    schedule = index.schedule
    ended = tree.unflatten(range(calls.flat_count, calls.flat_count + tree.num_leaves)).outcome.t
    replays = "u" in alone
    need_times = any(i in wanted for i in (schedule.t0, schedule.t1, schedule.stops, schedule.saves))
    diff = tuple(i for i in calls.diff if calls.args_count + i in wanted)
    record_axes = tuple(max(a, 0) for a in jax.tree.leaves(lane_axes(calls.template(options), alone)))
    in_axes = (0,) * calls.flat_count + record_axes + (1, 1, 1, 1, 0, 0)
    record_lanes = tuple(out.axis is not None for out in calls.outs(options, alone))
    lane_args = calls.lane_args + record_lanes + (True,) * 6

    def run(context: LaneContext, *flat):
        return backwards(context, *flat)[0]

    def backwards(context: LaneContext, *flat, scratch: Steps | None = None):
        """Cotangents, and the record, which overwrites ``scratch`` where it is made here."""
        args, theta = calls.split(flat)
        shared = context.shared[calls.args_count : calls.flat_count]
        after = calls.flat_count + tree.num_leaves
        result = tree.unflatten(flat[calls.flat_count : after])
        if alone and (context.size == 1 or (replays and context.shared[ended])):
            # lanes that share all results share those of a single solve
            result = result._replace(steps=on_lanes(result.steps, alone, context.size))
        elif replays:
            again = args if args.dt0 is not None else args._replace(dt0=result.outcome.first)
            result = run_forward(system, options, context, again, theta, shared, steps=scratch)
        elif alone:
            result = result._replace(steps=result.steps._replace(**dict.fromkeys(alone)))
        bars, forward = Cotangents(*flat[after:]), result
        unused = jnp.zeros(context.size, bool) if watch else unused_lanes(bars)
        summed = context.total and context.size > 1 and any(shared[i] for i in diff)
        idle = unused | has_failed(result) if summed else None
        if idle is not None:
            args, theta, result = replace_lanes(idle, args, theta, shared, result)
        reverse = Reverse(
            system,
            options,
            context,
            args,
            theta,
            shared,
            result,
            bars,
            diff,
            need_times,
            watch,
            idle,
        )
        costate = method.reverse(reverse)
        # a solve that failed has no gradient
        failed = has_failed(forward) | costate.failed
        if replays:
            # zeros in place of a record must never pass for one
            failed = failed | (result.steps.count < result.outcome.accepted)
        times: TimeCotangents = costate.times
        cotangents = {
            index.u0: costate.lam,
            schedule.t0: times.t0,
            schedule.t1: jnp.zeros_like(times.t0),
            schedule.stops: times.stops.T,
            schedule.saves: times.saves.T,
        }
        of_lanes = dict.fromkeys(cotangents, True)
        for i, leaf, axis in zip(diff, reverse.finish_mu(costate.mu), reverse.axes, strict=True):
            cotangents[calls.args_count + i], of_lanes[calls.args_count + i] = leaf, axis is not None
        grads = finish_gradients([cotangents[i] for i in wanted], [of_lanes[i] for i in wanted], failed, unused)
        info = finish_info(costate.info, forward, failed, times.t0.dtype) if watch else ()
        return [*grads, *info], result.steps

    def tile(context: LaneContext, scratch: Steps, *flat):
        results, used = backwards(context, *flat, scratch=scratch)
        return results, scratch if context.shared[ended] else used

    outs = tuple(Out(0, i) for i in wanted) + (Out(0),) * (len(ReverseInfo._fields) if watch else 0)
    tiling = Tiling(tile, lambda lanes: empty_steps(system, options, lanes, system.size)) if replays else None
    return LaneFunction(run, in_axes, lane_args, outs, base, tiling=tiling)
