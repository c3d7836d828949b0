"""`solve`: the front door of the library.

Outside jit a solve is compiled once for each structure of its inputs. Functions are captured anew at every call (a trace
of the right-hand side, not of the solve), so that what they close over is always current; if the captured computation is
one that was compiled before, that program is used, whatever function object it came from.
"""

from __future__ import annotations

from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from ..solvers.callbacks import as_callbacks
from ..solvers.explicit import ExplicitRungeKutta
from ..solvers.extension import DenseOutput, without_gradient
from ..solvers.forward import ForwardArgs, ForwardOptions
from ..solvers.integrate import RetCode
from ..solvers.lanes import own_promotion
from ..solvers.problem import ODEProblem
from ..solvers.schedule import RowPlan, concrete, make_schedule
from ..solvers.solution import Events, Solution, Stats
from ..solvers.tsit5 import Tsit5
from .assemble import Assembled, assemble
from .core import make_core
from .discrete import DiscreteAdjoint
from .failure import Loud, raise_if_failed
from .options import check_callbacks, check_count, check_number, check_span, check_state, save_times
from .programs import find_program
from .rows import gather_rows, hide_step_times, known_plan, state_plan
from .sensealg import SensitivityMethod
from .vjp import JaxVJP, VJPBackend
from .vjp.host_errors import own_exceptions

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


def solve(prob: ODEProblem, solver: ExplicitRungeKutta | None = None, **options: Any) -> Solution:
    """Solve ``du/dt = f(u, p, t)`` through its events; differentiable in everything that went in.

    Options, also accepted by `ODEProblem` (an argument here wins):

    - ``sensealg``: the sensitivity method, `DiscreteAdjoint` by default.
    - ``callback``: a callback or `CallbackSet`.
    - ``saveat``: None (start and end), an interval, or an array of times; ``save_start``, ``save_end`` add or drop the
      ends; ``save_everystep=True`` saves every accepted step instead; ``dense=True`` allows ``sol(t)``.
    - ``running_cost(u, p, t)``: its integral becomes ``sol.cost``.
    - ``rtol, atol``: a step is accepted if the RMS of its error over ``atol + rtol max(|u0|, |u1|)`` is at most 1.
    - ``dt0``: first step (the step itself where the solver does not adapt); ``max_steps``: attempts;
      ``max_events``: events on the state.
    - ``vjp``: where the reverse pass gets its vector-Jacobian products, `JaxVJP` by default; a ``vjp`` of the
      sensitivity method wins.
    - ``u0, p, tspan``: override the problem's. ``throw=False``: return failed solves with their ``retcode``.

    Gradients reach u0, p, tspan, save times, preset event times, and every array that f, affects, conditions and the
    running cost close over.

    Returns a `Solution`. Raises `SolveError` if the solve fails outside jit; inside jit, rows after a failure and all
    gradients are NaN, and ``retcode`` says why. Cost: ``solver.tableau.stages`` evaluations per attempted step.
    """
    if not isinstance(prob, ODEProblem):
        raise TypeError(f"solve: expected an ODEProblem; got {type(prob).__name__}.")
    overrides = {k: options.pop(k) for k in ("u0", "p", "tspan") if options.get(k) is not None}
    options.pop("u0", None), options.pop("p", None), options.pop("tspan", None)
    prob = prob.remake(**overrides) if overrides else prob
    if solver is not None:
        options["solver"] = solver
    unknown = [k for k in (*prob.options, *options) if k not in DEFAULTS]
    if unknown:
        raise TypeError(f"solve: unknown option {unknown[0]!r}. Options: {', '.join(sorted(DEFAULTS))}.")
    chosen = {**DEFAULTS, **prob.options, **options}
    return _solve(prob, **chosen)


def _solve(
    prob, solver, sensealg, callback, saveat, save_start, save_end, save_everystep, dense, running_cost,
    rtol, atol, dt0, max_steps, max_events, throw, vjp,
) -> Solution:  # fmt: skip
    if not isinstance(solver, ExplicitRungeKutta):
        raise TypeError(f"solve: solver must be a solver such as Tsit5(); got {solver!r}.")
    if isinstance(sensealg, type) or not (sensealg is None or isinstance(sensealg, SensitivityMethod)):
        raise TypeError(
            "solve: sensealg must be a sensitivity method such as DiscreteAdjoint(), "
            f"or None; got {sensealg!r}."
        )
    method = DiscreteAdjoint() if sensealg is None else sensealg
    backend = next((b for b in (method.vjp, vjp) if b is not None), JaxVJP())
    if not isinstance(backend, VJPBackend) or isinstance(backend, type):
        raise TypeError(f"solve: vjp must be a VJP backend such as JaxVJP(); got {backend!r}.")
    u0 = check_state(prob.u0)
    t0, t1 = check_span(prob.tspan)
    callbacks = as_callbacks(callback)
    check_number("rtol", rtol, positive=False), check_number("atol", atol, positive=False)
    if concrete(rtol) == 0 and concrete(atol) == 0:
        raise ValueError("solve: rtol and atol are both zero; no step could ever be accepted.")
    if dt0 is None and not solver.adaptive:
        raise ValueError(f"solve: {solver!r} takes equal steps; give their length, dt0=....")
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
    args_tree = jax.tree.structure(args)
    # outside jit a reverse solve that fails can raise; inside, its gradient is NaN
    outside_jit = all(concrete(x) is not None for x in jax.tree.leaves((args, built.theta)))
    method = Loud(method=method) if throw and outside_jit and method.kind == "reverse" else method
    program = find_program(
        prob.f, built, (static, method, args_tree), lambda: _compile(built, static, method, args_tree)
    )
    with own_exceptions():
        solution, end = program(args, built.theta, plan)
        if throw:
            raise_if_failed(solution, end, t0, t1, static)
    return solution


def _compile(built: Assembled, static: ForwardOptions, method, args_tree) -> Callable:
    system, packing, has_cost = built.system, built.packing, built.has_cost
    core = make_core(system, static, method, args_tree, len(built.theta), built.diff)

    @jax.jit
    @own_promotion()
    def program(args: ForwardArgs, theta: tuple, plan: RowPlan | None) -> tuple[Solution, Any]:
        result = hide_step_times(system, core(args, theta), static.everystep, method.kind != "reverse")
        if plan is None:
            plan = state_plan(system, args.schedule, result, static.everystep)
        ts, rows = gather_rows(plan, args.schedule, result, static.everystep)
        log, outcome = result.events, result.outcome
        cost = None
        if has_cost:
            failed = outcome.status > RetCode.Terminated
            cost, rows = jnp.where(failed, jnp.nan, outcome.u[-1].real), rows[:, :-1]
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
        return solution, end

    return program
