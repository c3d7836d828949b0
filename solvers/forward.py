"""The forward solve: a `ForwardWalk` taken from start to end."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .buffers import take
from .forward_walk import ForwardArgs, ForwardAux, ForwardOptions, ForwardWalk
from .integrate import RetCode, Stepping, integrate, start
from .lanes import LaneContext
from .record import Outcome, Result, Saves, Steps
from .runge_kutta import interpolate
from .system import LaneSystem, System

__all__ = ["ForwardArgs", "ForwardOptions", "run_forward"]


def run_forward(
    system: System,
    options: ForwardOptions,
    context: LaneContext,
    args: ForwardArgs,
    theta: tuple,
    shared: tuple[bool, ...],
    outline: bool = False,
    steps: Steps | None = None,
) -> Result:
    """Solve all lanes; ``args`` with lanes in front, ``theta`` with lanes only where not ``shared``.

    ``outline``: without the loop, which leaves shapes and dtypes as they are: a result of the same kind, quickly traced.
    ``steps``: a record that may be overwritten.
    """
    lanes = LaneSystem(system, context, theta, shared)
    walk = ForwardWalk(lanes, args, options)
    schedule = args.schedule
    aux, t, u = walk.initial(steps), schedule.t0, args.u0
    status = jnp.where(schedule.valid, RetCode.Running, RetCode.InvalidTime)
    row = jnp.full((), -1, np.int32)
    at_start = schedule.tied[:, 0] & (status == RetCode.Running)

    def begin(aux, u, status):
        answer = walk.arrive(aux, t, u, t, at_start, jnp.zeros_like(at_start), row)
        return answer.aux, answer.u, jnp.where(at_start, answer.status, status), answer.stop

    aux, u, status, stop = lax.cond(
        jnp.any(at_start), begin, lambda a, u, s: (a, u, s, walk.stops[0]), aux, u, status
    )
    stepping = Stepping(
        system.tableau,
        system.adaptive,
        args.rtol,
        args.atol,
        options.max_steps,
        options.bounded,
        (context.tiled or (system.rolls and context.size == 1)) and not options.bounded,
    )
    state = start(walk, stepping, t, u, stop, schedule.t1, aux, status, args.dt0)
    first = state.h
    state = state if outline else integrate(walk, stepping, state)
    aux = state.aux
    outcome = Outcome(
        state.status,
        state.t,
        state.u,
        state.h,
        first,
        aux.p,
        state.accepted,
        state.rejected,
        state.evaluations,
    )
    saves = rows_of_record(walk, aux) if options.bounded and not options.everystep else aux.saves
    return Result(saves, aux.events, outcome, aux.steps)


def rows_of_record(walk: ForwardWalk, aux: ForwardAux) -> Saves:
    """The saved rows once more, all at once from the recorded steps, so that derivatives pass through them."""
    saves, steps, u0 = aux.saves, aux.steps, walk.args.u0
    assert steps is not None and steps.k is not None
    if saves.u.shape[0] == 0:
        return saves

    slopes = steps.k

    def at(t, row):
        inner = jnp.maximum(row, 0)
        start, h = take(steps.t, inner), take(steps.h, inner)
        some = h != 0
        theta = jnp.clip(jnp.where(some, (t - start) / jnp.where(some, h, 1.0), 1.0), 0.0, 1.0)
        value = interpolate(walk.spec.tableau, take(steps.u, inner), h, take(slopes, inner), theta)
        return jnp.where((row >= 0)[:, None], value, u0)

    reached = jnp.arange(saves.u.shape[0], dtype=np.int32)[:, None] < saves.count
    u = jax.vmap(at)(walk.args.schedule.saves.T, saves.row)
    return saves._replace(u=jnp.where(reached[..., None], u, saves.u))
