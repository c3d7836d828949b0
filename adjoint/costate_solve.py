"""The costate's solve from the end of the record to t0, at once or block by block."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..solvers.integrate import RetCode, State, Stepping, integrate, start
from .costate import CostateAux, CostateWalk
from .diagnostics import first_look, info_of_solve
from .replay import block_of, replay
from .reverse import Reverse
from .sensealg import ContinuousAdjoint, Costate
from .times import finish_times
from .tolerances import reverse_tolerances


def solve_costate(reverse: Reverse, method: ContinuousAdjoint, walk: CostateWalk) -> Costate:
    """Walk from the end of the record to t0, and add what the start itself contributes."""
    args, result = reverse.args, reverse.result
    outcome = result.outcome
    lanes = reverse.lanes
    aux = CostateAux(
        reverse.zero_mu(),
        outcome.params,
        walk.count,
        result.events.count,
        jnp.zeros(lanes, np.int32) if walk.dense is None else walk.dense.last,
        None if walk.dense is None else outcome.u,
        jnp.zeros_like(args.schedule.stops.T),
        jnp.zeros(lanes, bool),
        jnp.zeros(lanes, np.int32),
        (),
        first_look(lanes, outcome.t.dtype, reverse.watch, walk.compare is not None),
    )
    aux = aux._replace(integral=walk.integral.initial(walk))
    lam = reverse.cotangents.end
    y = jnp.concatenate([lam, outcome.u], -1) if walk.solves_state else lam
    rtol, atol = reverse_tolerances(reverse, method)
    stepping = Stepping(
        reverse.tableau,
        reverse.system.adaptive,
        rtol,
        atol,
        4 * reverse.options.max_steps if method.max_steps is None else method.max_steps,
        rolled=reverse.compact,
    )
    status = jnp.where(outcome.status > RetCode.Terminated, outcome.status, RetCode.Running)
    if reverse.idle is not None:
        status = jnp.where(reverse.idle, RetCode.ReverseFailed, status)  # no step is taken
    # the end is the first stop: a step of length zero lands on it, and takes in what is there
    dt0 = jnp.abs(outcome.h) if reverse.system.adaptive else args.dt0
    state = start(walk, stepping, outcome.t, y, outcome.t, args.schedule.t0, aux, status, dt0, jnp.zeros_like(y))
    if reverse.options.slots is None:
        state = integrate(walk, stepping, state)
    else:
        state = _by_blocks(walk, stepping, state)
    aux = state.aux
    lam = state.u[:, : walk.n] + saves_at_start(reverse)
    times = finish_times(reverse, lam, aux.stops)
    failed = aux.bad | (aux.trouble > 0) | (state.status != RetCode.Success)
    all_lanes = outcome.status <= RetCode.Terminated
    aux = walk.see(walk.see(aux, reverse.cotangents.end, all_lanes), lam, all_lanes)
    aux = walk.see_state(aux, state.u[:, walk.n :], args.u0[None], jnp.zeros_like(aux.entry), all_lanes)
    return Costate(lam, aux.mu, times, failed, aux.trouble, info_of_solve(state, aux.seen, aux.trouble, aux.bad))


def _by_blocks(walk: CostateWalk, stepping: Stepping, state: State) -> State:
    """The walk through one block of replayed rows after another; every block begins like the end of the solve."""
    reverse, steps = walk.reverse, walk.reverse.result.steps
    assert steps is not None

    def body(carry: tuple[Array, State]) -> tuple[Array, State]:
        j, s = carry
        part = walk.within(replay(reverse, j, reverse.options.window, padding=1, slopes=True))
        status = jnp.where(s.status == RetCode.Success, RetCode.Running, s.status)
        return j - 1, integrate(part, stepping, s._replace(stop=s.t, k0=jnp.zeros_like(s.k0), status=status))

    last = block_of(reverse, steps.count)
    return lax.while_loop(lambda c: c[0] >= 0, body, (last, state))[1]


def saves_at_start(reverse: Reverse) -> Array:
    """Cotangents of the rows that hold u0 itself, ``(B, n)``."""
    saves = reverse.result.saves
    first = saves.row < 0
    used = jnp.arange(first.shape[0], dtype=np.int32)[:, None] < saves.count[None, :]
    return jnp.sum(jnp.where((first & used)[..., None], reverse.cotangents.saves, 0), 0)
