"""`solve`: the front door of the library.

Outside jit a solve is compiled once for each structure of its inputs. Functions are captured anew at every call (a trace
of the right-hand side, not of the solve), so that what they close over is always current; if the captured computation is
one that was compiled before, that program is used, whatever function object it came from.
"""

from __future__ import annotations

from typing import Any, Callable

import jax

from ..solvers.explicit import ExplicitRungeKutta
from ..solvers.forward import ForwardArgs
from ..solvers.lanes import own_promotion
from ..solvers.problem import ODEProblem
from ..solvers.schedule import RowPlan
from ..solvers.solution import Solution
from .core import make_core
from .failure import Loud, raise_if_failed
from .prepare import Prepared, prepare, solution_maker
from .programs import find_program
from .rows import hide_step_times
from .sensealg import SensitivityMethod
from .vjp.host_errors import own_exceptions


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
    call = prepare("solve", prob, solver, options)
    args_tree = jax.tree.structure(call.args)
    # outside jit a reverse solve that fails can raise; inside, its gradient is NaN
    method = Loud(method=call.method) if call.loud and call.method.kind == "reverse" else call.method
    program = find_program(
        call.prob.f, call.built, (call.static, method, args_tree), lambda: _compile(call, method, args_tree)
    )
    with own_exceptions():
        solution, end = program(call.args, call.built.theta, call.plan)
        if call.throw:
            raise_if_failed(solution, end, *call.prob.tspan, call.static)
    return solution


def _compile(call: Prepared, method: SensitivityMethod, args_tree: Any) -> Callable:
    built, static = call.built, call.static
    system, make_solution = built.system, solution_maker(built, static)
    core = make_core(system, static, method, args_tree, len(built.theta), built.diff)

    @jax.jit
    @own_promotion()
    def program(args: ForwardArgs, theta: tuple, plan: RowPlan | None) -> tuple[Solution, Any]:
        result = hide_step_times(system, core(args, theta), static.everystep, method.kind != "reverse")
        return make_solution(args, plan, result)[:2]

    return program
