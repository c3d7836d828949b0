"""`adjoint_sensitivities`: gradients of a cost whose derivatives the user brings, and what the reverse pass was like.

The cost is a sum over saved rows and an integral,

    G = sum_i g_i(u_i, p, t_i) + int_t0^t1 g(u, p, t) dt.

Derivatives of the g_i by the state enter the reverse pass as cotangents of the rows, exactly as those of a loss do under
`jax.grad`; those by p are added to its result. The integral is one more component of the state, as in `solve`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..solvers.explicit import ExplicitRungeKutta
from ..solvers.integrate import RetCode
from ..solvers.lanes import call_lanes, own_promotion
from ..solvers.problem import ODEProblem
from ..solvers.schedule import concrete
from ..solvers.solution import Solution
from .calls import Calls
from .cost_derivatives import cotangents_of_rows, gradient_of_costs
from .diagnostics import ReverseInfo
from .failure import complain, raise_if_failed
from .params import MOVES, is_inexact, split_params
from .prepare import Prepared, prepare, solution_maker
from .programs import find_program
from .reverse import Cotangents
from .reverse_function import reverse_function
from .reverse_mode import recording_options
from .rows import gather_rows, hide_step_times
from .vjp.host_errors import own_exceptions


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AdjointDiagnostics:
    """How a reverse pass went.

    retcode: `RetCode`, that of the forward solve if it failed. accepted, rejected: steps of the reverse solve; for
    `DiscreteAdjoint`, which takes none of its own, the forward steps that it transposed, and 0. evaluations: of the reverse
    right-hand side, one state VJP each (for `BacksolveAdjoint` also one f); products with df/dp come in batches and are not
    counted. largest_costate: the largest ``|lam_i|`` at the ends of reverse steps, which end at rows, and on both sides
    of events; for `DiscreteAdjoint` rows lie inside steps, and lam is seen at the ends of these.
    reconstruction_error: for `BacksolveAdjoint` the largest distance of the state solved backwards from the recorded one, at
    saved rows, right limits of events and u0, in units of ``atol + rtol |u|`` of the reverse solve; else None.
    solution: of the forward solve, with its rows, its cost and its own statistics.

    Fields of a method from outside that does not report them are -1 or NaN.
    """

    retcode: Array
    accepted: Array
    rejected: Array
    evaluations: Array
    largest_costate: Array
    reconstruction_error: Array | None
    solution: Solution


class AdjointSensitivities(NamedTuple):
    """``du0`` in the structure of u0; ``dp`` in that of p, None at leaves that are not floating point."""

    du0: Any
    dp: Any
    diagnostics: AdjointDiagnostics


def adjoint_sensitivities(
    prob: ODEProblem,
    solver: ExplicitRungeKutta | None = None,
    *,
    t: Any = None,
    dgdu: Any = None,
    dgdp: Any = None,
    dgdt: Any = None,
    running_cost: Callable | None = None,
    **options: Any,
) -> AdjointSensitivities:
    """The gradient of ``G = sum_i g_i(u_i, p, t_i) + int g(u, p, t) dt`` over saved rows i, through all events.

    - ``t``: the times of the sum, another name for ``saveat``; the limits that callbacks save are rows as well.
    - ``dgdu``: the derivative of g_i by the state: ``dgdu(u, p, t, i)`` in the structure of u, mapped over the rows by
      `jax.vmap`, or arrays ``(T, ...)`` in the structure of u0. i counts the rows of ``solve(...).us`` from 0. p is the
      problem's, also where events write parameters.
    - ``dgdp``: the derivative by p: ``dgdp(u, p, t, i)`` in the structure of p, or the sum of all in that structure. What
      stands at leaves that are not floating point is not looked at.
    - ``dgdt``: the derivative by the time of the row, ``dgdt(u, p, t, i)`` or ``(T,)``: for rows of events on the state,
      whose times depend on u0 and p.
    - ``running_cost(u, p, t)``: g; its derivatives are JAX's, or those that a `jax.custom_vjp` on it gives.
    - ``**options``: those of `solve`.

    Padding rows have no part in it. Derivatives of complex states are cotangents in JAX's convention, as from `jax.vjp`.

    Returns ``(du0, dp, diagnostics)``. Outside jit raises `SolveError` where the forward or the reverse pass fails; inside,
    or with ``throw=False``, the gradients are NaN and ``diagnostics.retcode`` says why. Raises TypeError for
    `ForwardSensitivity` and `DirectAdjoint`, which have no reverse pass. Cost: one solve and one reverse pass.
    """
    if t is not None:
        if options.get("saveat") is not None:
            raise ValueError("adjoint_sensitivities: t and saveat are two names for the times of the cost; give one.")
        options["saveat"] = t
    if running_cost is not None:
        options["running_cost"] = running_cost
    call = prepare("adjoint_sensitivities", prob, solver, options)
    if call.method.kind != "reverse":
        raise TypeError(
            f"adjoint_sensitivities: {type(call.method).__name__} has no reverse pass. Take one of DiscreteAdjoint, "
            "QuadratureAdjoint, GaussAdjoint, InterpolatingAdjoint and BacksolveAdjoint, or jax.grad of solve."
        )
    if all(x is None for x in (dgdu, dgdp, dgdt)) and not call.built.has_cost:
        raise ValueError("adjoint_sensitivities: there is no cost. Give dgdu, dgdp, dgdt or running_cost.")
    if dgdt is not None and call.static.everystep:
        raise ValueError("adjoint_sensitivities: with save_everystep the times of rows have no gradient; leave dgdt out.")
    p, args, theta = call.prob.p, call.args, call.built.theta
    args_tree = jax.tree.structure(args)
    passes = find_program(
        call.prob.f, call.built, ("sensitivities", call.static, call.method, args_tree), lambda: _compile(call, args_tree)
    )
    with own_exceptions():
        solution, end, plan, record = passes.forward(args, theta, call.plan)
        if call.throw:
            raise_if_failed(solution, end, *call.prob.tspan, call.static)
        bars = cotangents_of_rows(solution, call.built.packing, p, dgdu, dgdt)
        direct = gradient_of_costs(solution, p, dgdp)
        du0, dtheta, info = passes.backward(args, theta, record, plan, *bars)
        _raise_if_failed(call, solution, info)
    diagnostics = AdjointDiagnostics(
        info.status,
        info.accepted,
        info.rejected,
        info.evaluations,
        info.largest,
        info.reconstruction if call.method.reconstructs_state else None,
        solution,
    )
    return AdjointSensitivities(du0, _in_structure_of(p, dtheta, direct), diagnostics)


class Passes(NamedTuple):
    """The two compiled programs: the cost's derivatives are taken between them."""

    forward: Callable
    backward: Callable


def _compile(call: Prepared, args_tree: Any) -> Passes:
    built, static, method = call.built, call.static, call.method
    system, packing, has_cost, make_solution = built.system, built.packing, built.has_cost, solution_maker(built, static)
    calls = Calls(system, args_tree, len(built.theta), built.diff)
    recording = recording_options(system, static, method)
    recorder, tree = calls.forward(recording), calls.tree(recording)
    # no gradient of a time is needed
    wanted = (calls.index.u0, *(calls.args_count + i for i in calls.diff))
    reverser = reverse_function(calls, recording, method, 0, wanted, watch=True)
    place = {i: k for k, i in enumerate(wanted)}

    @jax.jit
    @own_promotion()
    def forward(args, theta, plan):
        record = call_lanes(recorder, *jax.tree.leaves(args), *theta)
        result = hide_step_times(system, tree.unflatten(record), static.everystep, False)
        return *make_solution(args, plan, result), record

    @jax.jit
    @own_promotion()
    def backward(args, theta, record, plan, row_bars, time_bars):
        result = tree.unflatten(record)
        saves, events = result.saves, result.events

        def rows(u, left, right, time):
            moved = result._replace(
                saves=saves._replace(u=u), events=events._replace(left=left, right=right, time=time)
            )
            return gather_rows(plan, args.schedule, moved, static.everystep)

        _, pull = jax.vjp(rows, saves.u, events.left, events.right, events.time)
        end = jnp.zeros_like(result.outcome.u)
        if has_cost:
            end = end.at[-1].set(1)
            row_bars = jnp.pad(row_bars, ((0, 0), (0, 1)))
        saved, left, right, time = pull((time_bars, row_bars))
        bars = Cotangents(saved, left, right, time, end, jnp.zeros_like(result.outcome.t))
        found = call_lanes(reverser, *jax.tree.leaves(args), *theta, *record, *bars)
        du0 = packing.unpack(found[place[calls.index.u0]][: packing.size])
        dtheta = {i: found[place[calls.args_count + i]] for i in calls.diff}
        return du0, dtheta, ReverseInfo(*found[len(place) :])

    return Passes(forward, backward)


def _raise_if_failed(call: Prepared, solution: Solution, info: ReverseInfo) -> None:
    if not call.loud:
        return
    status, trouble = concrete(info.status), concrete(info.trouble)
    if status is None or np.ndim(status) or trouble is None or status <= RetCode.Terminated:
        return
    event = max(int(trouble) - 1, 0) // 2
    where = [concrete(x[event]) for x in (solution.events.callback, solution.events.times)] if trouble else [-1, 0.0]
    complain(type(call.method).__name__, tuple(spec.kind for spec in call.built.system.events), trouble, *where)


def _in_structure_of(p: Any, dtheta: dict[int, Any], direct: list[Any] | None) -> Any:
    """The gradient by p: what came through the solution, and what the cost's own dependence adds (floating leaves)."""
    params = split_params(p)
    floating = iter(range(len(params.dynamic)))
    leaves, added = [], iter(direct or ())
    for kind in params.static:
        i = next(floating) if kind is MOVES else None
        if i is None or not is_inexact(params.dynamic[i]):
            leaves.append(None)
            continue
        own = dtheta[i]
        leaves.append(own if direct is None else own + next(added))
    return params.treedef.unflatten(leaves)
