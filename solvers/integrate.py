"""The adaptive loop: one integrator for forward and reverse solves.

Every lane walks from its time to the next known stop and on to the one after, at its own step size. What happens along
the way is told by a `Walk`: the right-hand side, what to do with a step, and what to do at a stop. Steps end exactly on
stops; nothing else shortens them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .runge_kutta import Step, interpolate, local_error, take_step
from .step_control import PIController, first_step, scaled_error
from .tableau import Tableau


class RetCode(IntEnum):
    """How a solve ended: ``hx.RetCode(int(sol.retcode)).name``."""

    Running = 0
    Success = 1
    Terminated = 2
    MaxSteps = 3
    NonFinite = 4
    StepTooSmall = 5
    MaxEvents = 6
    InvalidTime = 7
    Grazing = 8
    ReverseFailed = 9


class Arrival(NamedTuple):
    """What a walk answers at the end of a step."""

    aux: Any
    u: Array
    stop: Array  # next stop, (B,)
    restart: Array  # lanes whose slope must be evaluated again, (B,)
    status: Array  # (B,)


class Walk:
    """What a solve does with its steps. All masks are ``(B,)``; ``aux`` is a pytree the walk owns."""

    def rhs(self, aux: Any, t: Array, u: Array) -> Array:
        raise NotImplementedError

    def look_ahead(self, aux: Any, t: Array, h: Array) -> Any:
        """What can be known of the stages of a step before their states are: done once, for all of them."""
        return None

    def stage(self, aux: Any, ahead: Any, i: int | Array, t: Array, u: Array) -> Array:
        """The right-hand side at stage ``i`` of a step."""
        return self.rhs(aux, t, u)

    def extra_error(self, aux: Any, step: Step) -> tuple[Array | None, Any]:
        """A further scaled error ``(B,)`` that the step must satisfy, and what `after_step` needs of it."""
        return None, None

    def locate(self, aux: Any, step: Step, accepted: Array, landed: Array) -> tuple[Any, Array, Array | None]:
        """Events in the step: ``(aux, fired, theta)``, the step ends at fraction theta; None: never cut short."""
        return aux, jnp.zeros_like(accepted), None

    def after_step(self, aux: Any, step: Step, accepted, landed, theta, row, extra) -> Any:
        """Called once per iteration, before any event at its end is applied."""
        return aux

    def full(self, aux: Any, landed: Array) -> Array | None:
        """Whether the walk must `rest` before it goes on, ``()``; None where it never rests."""
        return None

    def rest(self, aux: Any) -> Any:
        """Called where the walk is `full`, and once all lanes have ended if something is `pending` then."""
        return aux

    def pending(self, aux: Any) -> Array | bool:
        """Whether the walk is to `rest` before it ends, ``()``."""
        return False

    def arrive(self, aux: Any, t: Array, u: Array, tprev: Array, landed: Array, fired: Array, row) -> Arrival:
        """Called when a lane has landed on its stop or an event has fired."""
        raise NotImplementedError


@dataclass(frozen=True)
class Stepping:
    """How steps are chosen: tolerances ``(B,)``, the number of attempts, and whether steps adapt.

    ``bounded``: the loop is a scan over all ``max_steps``, which JAX can differentiate in reverse. ``rolled``: the stages
    of a step are a loop.
    """

    tableau: Tableau
    adaptive: bool
    rtol: Array
    atol: Array
    max_steps: int
    bounded: bool = False
    rolled: bool = False


class State(NamedTuple):
    """The carry of the loop."""

    i: Array
    t: Array
    u: Array
    k0: Array
    h: Array
    log_previous: Array  # of the scaled error of the last accepted step
    stop: Array
    status: Array
    accepted: Array
    rejected: Array
    evaluations: Array
    aux: Any


def start(
    walk: Walk, stepping: Stepping, t: Array, u: Array, stop: Array, end: Array, aux, status, dt0, k0=None
) -> State:
    """The state before the first step. ``dt0 (B,)`` is the first step length, or None to choose one.

    ``k0``: the slope, None to evaluate it; it does not count where the first step has length zero.
    """
    lanes = t.shape[0]
    zeros = jnp.zeros(lanes, jnp.int32)
    evaluations = zeros + (k0 is None)
    k0 = walk.rhs(aux, t, u) if k0 is None else k0
    if dt0 is None:
        order = stepping.tableau.order
        h = first_step(
            lambda s, v: walk.rhs(aux, s, v), t, u, k0, end - t, order, stepping.rtol, stepping.atol
        )
        evaluations = evaluations + 1
    else:
        h = jnp.abs(dt0) * jnp.sign(end - t)
    running = status == RetCode.Running
    finite = jnp.all(jnp.isfinite(k0), -1) & jnp.all(jnp.isfinite(u), -1)
    status = jnp.where(running & ~finite, RetCode.NonFinite, status)
    return State(
        jnp.zeros((), jnp.int32), t, u, k0, h, jnp.zeros_like(h), stop, status, zeros, zeros, evaluations, aux
    )


def integrate(walk: Walk, stepping: Stepping, state: State) -> State:
    """Run every lane to its end. Costs ``tableau.stages`` evaluations per attempt and one per restart."""
    tableau = stepping.tableau
    control = PIController(tableau.order)
    real = state.t.dtype
    slack = np.asarray(1.01 if stepping.adaptive else 1.0001, real)
    eps = np.finfo(real).eps

    def active(s: State) -> Array:
        return (s.status == RetCode.Running) & (s.i < stepping.max_steps)

    def body(s: State) -> State:
        on = active(s)
        # a chosen step length is a constant for derivatives; the rest of the way to a stop moves with both its ends
        remaining = s.stop - s.t
        lands = jnp.abs(s.h) * slack >= jnp.abs(remaining)
        h = jnp.where(on, jnp.where(lands, remaining, s.h), np.asarray(0.0, real))
        ahead = walk.look_ahead(s.aux, s.t, h)
        stage = lambda i, t, u: walk.stage(s.aux, ahead, i, t, u)  # noqa: E731
        step = take_step(tableau, stage, s.t, h, s.u, s.k0, ahead, stepping.rolled)
        if stepping.adaptive:
            error = scaled_error(local_error(tableau, step), s.u, step.u1, stepping.rtol, stepping.atol)
            extra_error, extra = walk.extra_error(s.aux, step)
            if extra_error is not None:
                error = jnp.maximum(error, extra_error)
            passed = error <= 1
        else:
            _, extra = walk.extra_error(s.aux, step)
            error = jnp.ones_like(h)
            passed = jnp.all(jnp.isfinite(step.u1), -1)
        accepted = on & passed
        landed = accepted & lands
        aux, fired, theta = walk.locate(s.aux, step, accepted, landed)
        t1 = jnp.where(landed, s.stop, s.t + h)
        u1 = step.u1
        if theta is not None:
            cut = fired & (theta < 1)
            landed = landed & ~cut
            t1 = jnp.where(cut, s.t + theta * h, t1)
            u1 = jnp.where(cut[:, None], interpolate(tableau, s.u, h, step.k, theta), u1)
        aux = walk.after_step(aux, step, accepted, landed, theta, s.i, extra)
        full = walk.full(aux, landed)
        if full is not None:
            aux = lax.cond(full | ~jnp.any(on), walk.rest, lambda aux: aux, aux)

        if stepping.adaptive:
            log_error = jnp.log(jnp.maximum(error, np.asarray(1e-10, error.dtype)))
            factor = control.factor(error, log_error, s.log_previous, accepted)
            proposed = h * factor
            kept = accepted & (lands | fired)
            proposed = jnp.where(kept & (jnp.abs(s.h) > jnp.abs(proposed)), s.h, proposed)
            log_previous = jnp.where(accepted, log_error.astype(real), s.log_previous)
            floor = 16 * eps * jnp.maximum(jnp.abs(s.t), jnp.abs(s.stop))
            failed = on & ~accepted & (jnp.abs(proposed) <= floor)
            code = jnp.where(jnp.isfinite(error), RetCode.StepTooSmall, RetCode.NonFinite)
        else:
            proposed, log_previous = s.h, s.log_previous
            failed, code = on & ~accepted, jnp.full(on.shape, RetCode.NonFinite)
        move = accepted[:, None]
        s = State(
            s.i + 1,
            jnp.where(accepted, t1, s.t),
            jnp.where(move, u1, s.u),
            jnp.where(move, step.k[:, -1], s.k0),
            lax.stop_gradient(jnp.where(on, proposed, s.h)),
            lax.stop_gradient(log_previous),
            s.stop,
            jnp.where(failed, code, s.status),
            s.accepted + accepted,
            s.rejected + (on & ~accepted),
            s.evaluations + on * np.int32(tableau.stages),
            aux,
        )
        return lax.cond(
            jnp.any(landed | fired), lambda s: _arrive(walk, s, step.t, landed, fired), lambda s: s, s
        )

    if stepping.bounded:
        step_or_rest = lambda s, _: (lax.cond(jnp.any(active(s)), body, lambda s: s, s), None)  # noqa: E731
        state, _ = lax.scan(step_or_rest, state, length=stepping.max_steps)
    else:
        state = lax.while_loop(lambda s: jnp.any(active(s)) | walk.pending(s.aux), body, state)
    return state._replace(status=jnp.where(state.status == RetCode.Running, RetCode.MaxSteps, state.status))


def _arrive(walk: Walk, s: State, tprev: Array, landed: Array, fired: Array) -> State:
    answer = walk.arrive(s.aux, s.t, s.u, tprev, landed, fired, s.i - 1)
    status = jnp.where(landed | fired, answer.status, s.status)
    again = answer.restart & (status == RetCode.Running)
    k0 = lax.cond(
        jnp.any(again),
        lambda: jnp.where(again[:, None], walk.rhs(answer.aux, s.t, answer.u), s.k0),
        lambda: s.k0,
    )
    finite = jnp.all(jnp.isfinite(k0), -1)
    status = jnp.where(again & ~finite, RetCode.NonFinite, status)
    return s._replace(
        u=answer.u, k0=k0, stop=answer.stop, status=status, aux=answer.aux, evaluations=s.evaluations + again
    )
