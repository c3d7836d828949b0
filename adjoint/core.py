"""The differentiable core: one forward lane function, and the reverse pass that is its derivative.

`make_core` returns ``core(args, theta) -> Result``. It composes with jit, vmap (the mapped axis becomes lanes), grad and
vmap in any order, and jvp of grad. Under grad the forward pass leaves its record, and the sensitivity method carries the
cotangents back in a second lane function.
"""

from __future__ import annotations

from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad

from ..solvers.forward import ForwardArgs, ForwardOptions, run_forward
from ..solvers.integrate import RetCode
from ..solvers.lanes import LaneContext, LaneFunction, Level, Out, call_lanes
from ..solvers.record import EventLog, Outcome, Result, Saves, Steps, lane_axes
from ..solvers.system import System
from .reverse import Cotangents, Reverse, TimeCotangents
from .sensealg import SensitivityMethod


def _template(system: System, options: ForwardOptions) -> Result:
    """A result with True in place of each array that will be there."""
    here: Any = True
    params = here if system.param_size is not None else None
    steps = None
    if options.record:
        slopes, theta = here if options.dense else None, here if system.has_roots else None
        steps = Steps(here, here, here, here, slopes, theta)
    return Result(
        Saves(here, here, here, here, here),
        EventLog(here, here, here, here, here, here, here, here, here, params),
        Outcome(here, here, here, here, params, here, here, here),
        steps,
    )


def _outs(template: Result) -> tuple[Out, ...]:
    axes = lane_axes(template)
    return tuple(Out(None if a == -1 else a) for a in jax.tree.leaves(axes))


def make_core(
    system: System,
    options: ForwardOptions,
    method: SensitivityMethod,
    args_tree: Any,
    theta_count: int,
    diff: tuple[int, ...],
) -> Callable[[ForwardArgs, tuple], Result]:
    """The core for one system and one set of static options; ``args_tree``: treedef of `ForwardArgs`."""
    args_count = args_tree.num_leaves
    lane_args = (True,) * args_count + (False,) * theta_count

    def forward_function(options: ForwardOptions, derivative=None) -> LaneFunction:
        def run(context: LaneContext, *flat):
            args = args_tree.unflatten(flat[:args_count])
            shared = context.shared[args_count:]
            result = run_forward(system, options, context, args, flat[args_count:], shared)
            return jax.tree.leaves(result)

        outs = _outs(_template(system, options))
        return LaneFunction(run, (0,) * len(lane_args), lane_args, outs, derivative=derivative)

    plain_tree = jax.tree.structure(_template(system, options))
    plain_count = plain_tree.num_leaves
    recording = options._replace(
        record=options.record or method.records_steps, dense=options.dense or method.records_slopes
    )
    record_tree = jax.tree.structure(_template(system, recording))
    recorder = forward_function(recording)
    reversers: dict = {}

    def reverser(base: int, perturbed: tuple[bool, ...]) -> LaneFunction:
        key = (base, perturbed)
        if key not in reversers:
            reversers[key] = _reverse_function(
                system, recording, method, args_tree, theta_count, diff, record_tree, base, perturbed
            )
        return reversers[key]

    def derivative(levels: tuple[Level, ...], primals, tangents):
        perturbed = tuple(type(t) is not ad.Zero for t in tangents)
        backward = reverser(len(levels), perturbed)

        @jax.custom_vjp
        def solve(*flat):
            return plain(*flat, levels=levels)

        def solve_forward(*flat):
            outs = call_lanes(recorder, *flat, levels=levels)
            return outs[:plain_count], (flat, outs)

        def solve_backward(residuals, bars):
            flat, outs = residuals
            result = plain_tree.unflatten(bars)
            bars = [
                result.saves.u,
                result.events.left,
                result.events.right,
                result.events.time,
                result.outcome.u,
                result.outcome.t,
            ]
            mapped = _mapped(levels, len(flat), recorder.outs, len(bars))
            back_levels = tuple(Level(v.size, m) for v, m in zip(levels, mapped, strict=True))
            grads = iter(call_lanes(backward, *flat, *outs, *bars, levels=back_levels))
            wanted = _wanted(args_tree, theta_count, diff)
            return tuple(next(grads) if w else None for w in wanted)

        solve.defvjp(solve_forward, solve_backward)
        dots = [_instantiate(x, t) for x, t in zip(primals, tangents, strict=True)]
        outs, dots = jax.jvp(solve, tuple(primals), tuple(dots))
        return outs, dots

    plain_function = forward_function(options, derivative)

    def plain(*flat, levels=()):
        return call_lanes(plain_function, *flat, levels=levels)

    def core(args: ForwardArgs, theta: tuple) -> Result:
        return plain_tree.unflatten(plain(*jax.tree.leaves(args), *theta))

    return core


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


def _wanted(args_tree, theta_count: int, diff: tuple[int, ...]) -> tuple[bool, ...]:
    """Positions of the forward arguments that get a cotangent, in order."""
    index = args_tree.unflatten(range(args_tree.num_leaves))
    schedule = index.schedule
    wanted = {index.u0, schedule.t0, schedule.t1, schedule.stops, schedule.saves}
    offset = args_tree.num_leaves
    wanted |= {offset + i for i in diff}
    return tuple(i in wanted for i in range(offset + theta_count))


def _reverse_function(
    system, options, method, args_tree, theta_count, diff, record_tree, base, perturbed
) -> LaneFunction:
    args_count, record_count = args_tree.num_leaves, record_tree.num_leaves
    template = _template(system, options)
    flat_count = args_count + theta_count
    index = args_tree.unflatten(range(args_count))
    timed = (index.schedule.t0, index.schedule.t1, index.schedule.stops, index.schedule.saves)
    need_times = any(perturbed[i] for i in timed)
    record_axes = [max(a, 0) for a in jax.tree.leaves(lane_axes(template))]
    in_axes = (0,) * flat_count + tuple(record_axes) + (1, 1, 1, 1, 0, 0)
    record_lanes = tuple(out.axis is not None for out in _outs(template))
    lane_args = (True,) * args_count + (False,) * theta_count + record_lanes + (True,) * 6
    wanted = _wanted(args_tree, theta_count, diff)
    outs = tuple(Out(0, i) for i, w in enumerate(wanted) if w)

    def run(context: LaneContext, *flat):
        args = args_tree.unflatten(flat[:args_count])
        theta = flat[args_count:flat_count]
        result = record_tree.unflatten(flat[flat_count : flat_count + record_count])
        saves, left, right, time, end, end_time = flat[flat_count + record_count :]
        # a solve that failed has no gradient
        failed = result.outcome.status > RetCode.Terminated
        cotangents = Cotangents(saves, left, right, time, end, end_time)
        shared = context.shared[args_count:flat_count]
        reverse = Reverse(
            system, options, context, args, theta, shared, result, cotangents, diff, need_times
        )
        costate = method.reverse(reverse)
        failed = failed | costate.failed
        leaves = reverse.finish_mu(costate.mu)
        any_failed = jnp.any(failed)

        def poison(x, axis):
            if axis is None:
                return jnp.where(any_failed, jnp.full_like(x, jnp.nan), x)
            return jnp.where(failed.reshape((-1,) + (1,) * (x.ndim - 1)), jnp.full_like(x, jnp.nan), x)

        times: TimeCotangents = costate.times
        by_position = {
            index.u0: poison(costate.lam, 0),
            index.schedule.t0: poison(times.t0, 0),
            index.schedule.t1: jnp.zeros_like(times.t0),
            index.schedule.stops: poison(times.stops.T, 0),
            index.schedule.saves: poison(times.saves.T, 0),
        }
        for i, leaf, axis in zip(diff, leaves, reverse.axes, strict=True):
            by_position[args_count + i] = poison(leaf, axis)
        return [by_position[i] for i, w in enumerate(wanted) if w]

    return LaneFunction(run, in_axes, lane_args, outs, base)
