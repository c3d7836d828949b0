"""From what a call asks for to what the core needs: options checked, functions captured, times put in order."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..solvers.callbacks import as_callbacks
from ..solvers.explicit import ExplicitRungeKutta
from ..solvers.extension import DenseOutput, without_gradient
from ..solvers.forward import ForwardArgs, ForwardOptions
from ..solvers.integrate import RetCode
from ..solvers.problem import ODEProblem
from ..solvers.record import Result
from ..solvers.schedule import RowPlan, concrete, make_schedule
from ..solvers.solution import Events, Solution, Stats
from ..solvers.tsit5 import Tsit5
from ..solvers.undefined import shown_as
from .assemble import Assembled, assemble
from .discrete import DiscreteAdjoint
from .options import check_callbacks, check_count, check_method, check_number, check_span, check_state, save_times
from .rows import gather_rows, known_plan, state_plan
from .sensealg import SensitivityMethod
from .vjp import JaxVJP, VJPBackend

DEFAULTS: dict[str, Any] = dict(
    solver=Tsit5(),
    sensealg=None,
    callback=None,
    saveat=None,
    save_start=None,
    save_end=None,
    save_everystep=False,
    dense=False,
    running_cost=None,
    rtol=1e-3,
    atol=1e-6,
    dt0=None,
    max_steps=4096,
    max_events=64,
    throw=True,
    vjp=None,
)


class Prepared(NamedTuple):
    """One solve, ready to run. ``loud``: failures can raise and are to, as the solve runs outside jit."""

    prob: ODEProblem
    built: Assembled
    static: ForwardOptions
    method: SensitivityMethod
    args: ForwardArgs
    plan: RowPlan | None
    throw: bool
    loud: bool


def prepare(caller: str, prob: Any, solver: ExplicitRungeKutta | None, options: dict[str, Any]) -> Prepared:
    """Check what was asked for; ``caller`` is the function that the user called."""
    if not isinstance(prob, ODEProblem):
        raise TypeError(f"{caller}: expected an ODEProblem; got {type(prob).__name__}.")
    overrides = {k: options[k] for k in ("u0", "p", "tspan") if options.get(k) is not None}
    options = {k: x for k, x in options.items() if k not in ("u0", "p", "tspan")}
    prob = prob.remake(**overrides) if overrides else prob
    if solver is not None:
        options["solver"] = solver
    unknown = [k for k in (*prob.options, *options) if k not in DEFAULTS]
    if unknown:
        raise TypeError(f"{caller}: unknown option {unknown[0]!r}. Options: {', '.join(sorted(DEFAULTS))}.")
    return _prepare(caller, prob, **{**DEFAULTS, **prob.options, **options})


def _prepare(
    caller, prob, solver, sensealg, callback, saveat, save_start, save_end, save_everystep, dense, running_cost,
    rtol, atol, dt0, max_steps, max_events, throw, vjp,
) -> Prepared:  # fmt: skip
    if not isinstance(solver, ExplicitRungeKutta):
        raise TypeError(f"{caller}: solver must be a solver such as Tsit5(); got {solver!r}.")
    if isinstance(sensealg, type) or not (sensealg is None or isinstance(sensealg, SensitivityMethod)):
        raise TypeError(
            f"{caller}: sensealg must be a sensitivity method such as DiscreteAdjoint(), "
            f"or None; got {sensealg!r}."
        )
    method = DiscreteAdjoint() if sensealg is None else sensealg
    check_method(method)
    backend = next((b for b in (method.vjp, vjp) if b is not None), JaxVJP())
    if not isinstance(backend, VJPBackend) or isinstance(backend, type):
        raise TypeError(f"{caller}: vjp must be a VJP backend such as JaxVJP(); got {backend!r}.")
    u0 = check_state(prob.u0)
    t0, t1 = check_span(prob.tspan)
    callbacks = as_callbacks(callback)
    check_number("rtol", rtol, positive=False), check_number("atol", atol, positive=False)
    if concrete(rtol) == 0 and concrete(atol) == 0:
        raise ValueError(f"{caller}: rtol and atol are both zero; no step could ever be accepted.")
    if dt0 is None and not solver.adaptive:
        raise ValueError(f"{caller}: {solver!r} takes equal steps; give their length, dt0=....")
    if dt0 is not None:
        check_number("dt0", dt0, positive=True)
    times = check_callbacks(callbacks, t0, t1)
    saves = save_times(saveat, t0, t1, save_start, save_end, save_everystep)
    built = assemble(prob.f, u0, prob.p, callbacks, running_cost, solver, backend)
    system = built.system
    real = system.time_dtype
    schedule = make_schedule(t0, t1, times, saves, real)
    fixed = all(isinstance(x, (np.ndarray, np.generic)) for x in schedule)
    plan = known_plan(system, schedule, [len(x) for x in times], fixed) if not save_everystep else None
    static = ForwardOptions(
        check_count("max_steps", max_steps),
        check_count("max_events", max_events),
        bool(save_everystep),
        record=bool(dense),
        dense=bool(dense),
    )
    flat = built.packing.pack(u0)
    if built.has_cost:
        flat = jnp.append(flat, jnp.zeros((), flat.dtype))
    number = lambda x: None if x is None else jnp.asarray(x, real)  # noqa: E731
    args = ForwardArgs(flat, schedule, number(rtol), number(atol), number(dt0))
    outside_jit = all(concrete(x) is not None for x in jax.tree.leaves((args, built.theta)))
    return Prepared(prob, built, static, method, args, plan, throw, throw and outside_jit)


def solution_maker(built: Assembled, static: ForwardOptions) -> Callable:
    """``(ForwardArgs, RowPlan | None, Result) -> (Solution, where it ended, RowPlan)``, free of the arrays of ``built``."""
    system, packing, has_cost = built.system, built.packing, built.has_cost

    def make(args: ForwardArgs, plan: RowPlan | None, result: Result) -> tuple[Solution, Any, RowPlan]:
        if plan is None:
            plan = state_plan(system, args.schedule, result, static.everystep)
        ts, rows = gather_rows(plan, args.schedule, result, static.everystep)
        log, outcome = result.events, result.outcome
        cost = None
        if has_cost:
            failed = outcome.status > RetCode.Terminated
            cost, rows = outcome.u[-1].real, rows[:, :-1]
            cost = jnp.where(failed, shown_as(jnp.nan, cost), cost)
        extension = None
        if static.dense:
            t0, t1 = without_gradient((args.schedule.t0, outcome.t))
            extension = DenseOutput(t0, t1, without_gradient(result.steps), system.tableau, packing)
        component = jnp.where((log.callback >= 0) & (log.component < 0), -1 - log.component, log.component)
        end = jax.lax.stop_gradient((outcome.t, packing.unpack(outcome.u[: packing.size])))
        solution = Solution(
            ts,
            packing.unpack(rows),
            jnp.asarray(plan.sides, jnp.int32),
            jnp.asarray(plan.valid),
            outcome.status,
            Stats(outcome.accepted, outcome.rejected, outcome.evaluations),
            Events(log.time, log.callback, component),
            cost,
            extension,
        )
        return solution, end, plan

    return make
