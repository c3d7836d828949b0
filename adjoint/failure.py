"""What to say when a solve outside jit did not reach its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..solvers.forward import ForwardOptions
from ..solvers.integrate import RetCode
from ..solvers.schedule import concrete
from ..solvers.solution import Solution, SolveError
from ..solvers.system import System
from .checkpoints import Checkpoints
from .failed_lanes import has_failed, unused_lanes
from .reverse import Reverse
from .sensealg import Costate, SensitivityMethod


@dataclass(frozen=True)
class Loud(SensitivityMethod):
    """A sensitivity method that raises where its reverse solve fails, for solves outside jit."""

    method: SensitivityMethod = field(default_factory=SensitivityMethod)

    @property
    def records_steps(self) -> bool:  # type: ignore[override]
        return self.method.records_steps

    @property
    def records_slopes(self) -> bool:  # type: ignore[override]
        return self.method.records_slopes

    def plan(self, system: System, rows: int) -> Checkpoints | None:
        return self.method.plan(system, rows)

    def slopes_of_one(self, system: System, rows: int, slots: int | None) -> bool:
        return self.method.slopes_of_one(system, rows, slots)

    def reverse(self, problem: Reverse) -> Costate:
        costate = self.method.reverse(problem)
        failed = jnp.any(costate.failed & ~has_failed(problem.result) & ~unused_lanes(problem.cotangents))
        name = type(self.method).__name__

        # the check is added to every result, so that no use of the gradient can do without it
        zero = jnp.zeros((), problem.args.rtol.dtype)
        log, kinds = problem.result.events, tuple(spec.kind for spec in problem.system.events)
        trouble = jnp.zeros((), np.int32) if costate.trouble is None else jnp.max(costate.trouble)
        where = [trouble, zero - 1, zero]
        if log.time.shape[0]:
            event = jnp.maximum(trouble - 1, 0) // 2
            where = [trouble, log.callback[event, 0], log.time[event, 0]]

        def tell(*found):
            raise_it = lambda *x: complain(name, kinds, *x)  # noqa: E731
            return jax.pure_callback(raise_it, jax.ShapeDtypeStruct((), zero.dtype), *found)

        zero = jax.lax.cond(failed, tell, lambda *_: zero, *where)
        checked = lambda x: x + zero.astype(x.dtype)  # noqa: E731
        return costate._replace(lam=checked(costate.lam), mu=jax.tree.map(checked, costate.mu))


def complain(name: str, kinds: tuple[str, ...], trouble: Any, callback: Any, time: Any) -> Any:
    """Raise for a reverse pass that failed; ``trouble``: `Jumped.trouble`, ``callback`` and ``time`` of that event."""
    if not trouble and name == "DiscreteAdjoint":
        raise SolveError(
            "the reverse pass of DiscreteAdjoint met a cotangent of the state that is not finite, though the solve did not: "
            "look at the derivatives of the right-hand side (its VJP, if it is your own), of the affects and of the cost.",
            RetCode.ReverseFailed,
        )
    if not trouble:
        raise SolveError(
            f"the reverse solve of {name} failed: its steps were exhausted, or it met a value that is not finite. Loosen "
            "its tolerances, raise its max_steps, or use DiscreteAdjoint.",
            RetCode.ReverseFailed,
        )
    event = f"the event at t = {float(time):.9g} of callback {int(callback)} ({kinds[int(callback)]}, counted from 0)"
    if trouble % 2:
        raise SolveError(
            f"{event} grazes its condition: the trajectory touches zero almost without crossing it, and the time of the "
            "event has no derivative there. Move the threshold or the start, or drop the event.",
            RetCode.Grazing,
        )
    raise SolveError(
        f"the loss depends on the time of {event}, and that time has no gradient: a boolean condition is tested at the "
        "ends of steps. Use a ContinuousCallback, whose condition crosses zero at the event; or take the times as "
        "constants, jax.lax.stop_gradient(sol.ts).",
        RetCode.ReverseFailed,
    )


def raise_if_failed(solution: Solution, end: Any, t0: Any, t1: Any, options: ForwardOptions) -> None:
    """Raise `SolveError` if the return code is known here and is a failure."""
    status = concrete(solution.retcode)
    if status is None or np.ndim(status) or status in (RetCode.Success, RetCode.Terminated):
        return
    code = RetCode(int(status))
    t, state = concrete(end[0]), jax.tree.map(concrete, end[1])
    where = "" if t is None else f"at t = {float(t):.9g}"
    span = f"({_show(t0)}, {_show(t1)})"
    steps = f"{_show(solution.stats.accepted)} accepted and {_show(solution.stats.rejected)} rejected steps"
    advice = {
        RetCode.MaxSteps: f"max_steps={options.max_steps} was reached {where} of {span}, after {steps}. Raise max_steps, "
        "or loosen the tolerances; many rejections hint at a stiff or discontinuous right-hand side.",
        RetCode.NonFinite: f"the right-hand side or the state is not finite {where} of {span}, or the condition of a "
        f"ContinuousCallback is NaN there; the state is {state}. Check them at this state and the parameters they got.",
        RetCode.StepTooSmall: f"the step size underflowed {where} of {span}, after {steps}; the state there is {state}. The "
        "solution may blow up there, or the right-hand side may be discontinuous: declare the jump as a callback.",
        RetCode.MaxEvents: f"more than max_events={options.max_events} events on the state had fired {where} of {span}. "
        f"{_last_events(solution)} Raise max_events, or check whether events pile up (a ball at rest).",
        RetCode.InvalidTime: f"a save time or an event time lies outside the span {span}.",
        RetCode.Grazing: f"an event grazes its condition {where}: the trajectory touches zero without crossing it, and the "
        "event's time has no derivative there. Move the threshold, or drop the event.",
    }
    raise SolveError(f"solve ended with {code.name}: {advice.get(code, where)}", code)


def _show(x: Any) -> str:
    value = concrete(x)
    return "traced" if value is None else f"{value:.9g}" if value.dtype.kind == "f" else str(value)


def _last_events(solution: Solution) -> str:
    times = concrete(solution.events.times)
    if times is None:
        return ""
    last = times[np.isfinite(times)][-3:]
    return f"The last ones were at t = {', '.join(f'{x:.9g}' for x in last)}."
