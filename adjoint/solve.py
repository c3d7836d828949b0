"""`solve`: the front door of the library.

Outside jit a solve is compiled once for each structure of its inputs. Functions are captured anew at every call (a trace
of the right-hand side, not of the solve), so that what they close over is always current; if the captured computation is
one that was compiled before, that program is used, whatever function object it came from.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from ..solvers.callbacks import as_callbacks
from ..solvers.explicit import ExplicitRungeKutta
from ..solvers.forward import ForwardArgs, ForwardOptions
from ..solvers.integrate import RetCode
from ..solvers.lanes import own_promotion
from ..solvers.problem import ODEProblem
from ..solvers.schedule import RowPlan, concrete, make_schedule
from ..solvers.solution import Events, Solution, SolveError, Stats
from ..solvers.tsit5 import Tsit5
from .assemble import Assembled, assemble
from .core import make_core
from .discrete import DiscreteAdjoint
from .options import check_callbacks, check_count, check_number, check_span, check_state, save_times
from .rows import gather_rows, known_plan, state_plan
from .sensealg import SensitivityMethod

CACHE_SIZE = 64
RECOMPILATION_WARNING = 16

_programs: OrderedDict[Any, Callable] = OrderedDict()
_compilations: OrderedDict[Any, int] = OrderedDict()

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
    rtol, atol, dt0, max_steps, max_events, throw,
) -> Solution:  # fmt: skip
    if not isinstance(solver, ExplicitRungeKutta):
        raise TypeError(f"solve: solver must be a solver such as Tsit5(); got {solver!r}.")
    if isinstance(sensealg, type) or not (sensealg is None or isinstance(sensealg, SensitivityMethod)):
        raise TypeError(
            "solve: sensealg must be a sensitivity method such as DiscreteAdjoint(), "
            f"or None; got {sensealg!r}."
        )
    method = DiscreteAdjoint() if sensealg is None else sensealg
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
    built = assemble(prob.f, u0, prob.p, callbacks, running_cost, solver)
    system = built.system
    real = system.time_dtype
    schedule = make_schedule(t0, t1, times, saves, real)
    fixed = all(isinstance(x, (np.ndarray, np.generic)) for x in schedule)
    plan = known_plan(system, schedule, fixed) if not save_everystep else None
    static = ForwardOptions(
        check_count("max_steps", max_steps), check_count("max_events", max_events), bool(save_everystep), dense=False
    )
    flat = built.packing.pack(u0)
    if built.has_cost:
        flat = jnp.append(flat, jnp.zeros((), flat.dtype))
    number = lambda x: None if x is None else jnp.asarray(x, real)  # noqa: E731
    args = ForwardArgs(flat, schedule, number(rtol), number(atol), number(dt0))
    program = _program(prob.f, built, static, method, args, bool(dense))
    solution = program(args, built.theta, plan)
    if throw:
        _raise_if_failed(solution, t0, t1, static)
    return solution


def _program(f: Any, built: Assembled, static: ForwardOptions, method, args: ForwardArgs, dense: bool) -> Callable:
    """The compiled solve for this structure, from the bounded cache or new."""
    args_tree = jax.tree.structure(args)
    shape = (static, method, args_tree, dense)
    loose, strict = (f, built.loose_key, shape), (None, built.strict_key, shape)
    for key in (loose, strict):
        if key in _programs:
            _programs.move_to_end(key)
            return _programs[key]
    _count_compilation(f)
    program = _compile(built, static, method, args_tree, dense)
    _programs[strict] = _programs[loose] = program
    while len(_programs) > 2 * CACHE_SIZE:
        _programs.popitem(last=False)
    return program


def _count_compilation(f: Any) -> None:
    code = getattr(f, "__code__", None)
    if code is None:
        return
    count = _compilations[code] = _compilations.get(code, 0) + 1
    _compilations.move_to_end(code)
    while len(_compilations) > CACHE_SIZE:
        _compilations.popitem(last=False)
    if count == RECOMPILATION_WARNING:
        warnings.warn(
            f"solve has compiled the right-hand side {getattr(f, '__qualname__', f)!r} {count} times. Its computation, or "
            "the structure or options of the solve, differ from call to call: keep shapes and Python numbers inside "
            "it fixed, or wrap the loop in jax.jit.",
            stacklevel=5,
        )


def _compile(built: Assembled, static: ForwardOptions, method, args_tree, dense: bool) -> Callable:
    system, packing, has_cost = built.system, built.packing, built.has_cost
    core = make_core(system, static, method, args_tree, len(built.theta), built.diff)

    @jax.jit
    @own_promotion()
    def program(args: ForwardArgs, theta: tuple, plan: RowPlan | None) -> Solution:
        result = core(args, theta)
        if plan is None:
            plan = state_plan(system, args.schedule, result, static.everystep)
        ts, rows = gather_rows(plan, args.schedule, result, static.everystep)
        log, outcome = result.events, result.outcome
        cost = None
        if has_cost:
            cost, rows = outcome.u[-1].real, rows[:, :-1]
        component = jnp.where((log.callback >= 0) & (log.component < 0), -1 - log.component, log.component)
        return Solution(
            ts,
            packing.unpack(rows),
            jnp.asarray(plan.sides, jnp.int32),
            jnp.asarray(plan.valid),
            outcome.status,
            Stats(outcome.accepted, outcome.rejected, outcome.evaluations),
            Events(log.time, log.callback, component),
            cost,
        )

    return program


def _raise_if_failed(solution: Solution, t0: Any, t1: Any, static: ForwardOptions) -> None:
    status = concrete(solution.retcode)
    if status is None or np.ndim(status) or status in (RetCode.Success, RetCode.Terminated):
        return
    code = RetCode(int(status))
    raise SolveError(f"solve ended with {code.name}.", code)
