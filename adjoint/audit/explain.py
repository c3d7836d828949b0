"""`explain_gradient`: which leaves of p cannot have a gradient, and why.

The right-hand side, affects, conditions and running cost are traced, and each leaf of p is followed to what the loss can
see: du/dt, the state after an event, the time of an event on the state, the cost. A leaf that reaches none of these along
a path that differentiates has a gradient that is zero whatever the loss: unless the loss reads p itself. No numbers are
involved, so that nothing that happens to vanish at one point is accused.

u0 always reaches the state by identity, du0/du0 = 1, and is never lost. Components that no right-hand side reads are noted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import core

from ...solvers.callbacks import ContinuousCallback, DiscreteCallback, as_callbacks
from ...solvers.problem import ODEProblem
from ..assemble import takes_four
from ..capture import capture
from ..closures import arrays_held, is_reference
from ..options import check_state
from ..params import split_params
from .dataflow import LIVE, Flow, Loss, follow, merge

UNUSED = "unused"
CONSTANT = "captured constant"


@dataclass(frozen=True)
class ZeroGradient:
    """A leaf without a gradient. ``causes``: "unused", "captured constant", or where each path breaks."""

    leaf: str
    causes: tuple[str, ...]
    detail: str

    def __str__(self) -> str:
        return f"{self.leaf}: {', '.join(self.causes)}. {self.detail}"


@dataclass(frozen=True)
class CapturedConstant:
    """An array that a function closes over. ``function``: which; ``name``: what it is called there, if that is known."""

    function: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    summary: str
    kind: str

    def __str__(self) -> str:
        shape = f"[{','.join(map(str, self.shape))}]"
        return f"{self.function} holds {self.name}: {self.dtype}{shape} {self.summary}; {self.kind}"


@dataclass(frozen=True)
class GradientExplanation:
    """What `explain_gradient` found; false if no leaf is without a gradient."""

    zeros: tuple[ZeroGradient, ...]
    captured: tuple[CapturedConstant, ...]
    notes: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.zeros)

    def __len__(self) -> int:
        return len(self.zeros)

    def __str__(self) -> str:
        head = "no leaf of p is without a gradient" if not self.zeros else "gradients that are zero whatever the loss:"
        lines = [f"explain_gradient: {head}", *(f"  {z}" for z in self.zeros)]
        if self.captured:
            lines += ["captured arrays:", *(f"  {c}" for c in self.captured)]
        if self.notes:
            lines += ["notes:", *(f"  {n}" for n in self.notes)]
        return "\n".join(lines)

    __repr__ = __str__


@dataclass(frozen=True)
class _Traced:
    """One function of the problem, with the flows at its outputs. Inputs: leaves of p first, leaves of u after."""

    label: str
    function: Callable
    kind: str  # "rhs", "affect", "condition", "test" or "cost"
    state: Flow  # at everything the loss can see
    params: tuple[Flow, ...]  # at the parameters that an event writes
    consts: tuple[Any, ...]


def explain_gradient(prob: ODEProblem, *, callback: Any = None, running_cost: Any = None) -> GradientExplanation:
    """Every leaf of ``prob.p`` whose gradient is structurally zero, and why.

    callback, running_cost: as for `solve`; the problem's own by default. Causes: ``unused``; ``captured constant`` (unused,
    but a function closes over an array of the same value: it should read p); ``stop_gradient``; ``integer cast``;
    ``rounding`` (floor, ceil, round, sign); ``comparison only``; ``index only``; with file and line.

    Returns a `GradientExplanation`, false if there is none, which prints as text. It also lists what the functions close
    over, and notes what is no error but worth knowing. Cost: one trace of each function; nothing is compiled.

    Not reported: a leaf whose path is multiplied by zero, ``0.0 * p["a"]``, and one that an event overwrites at t0 before
    anything has read it (``affects_params``). Values and the order of events are not looked at.
    """
    if not isinstance(prob, ODEProblem):
        raise TypeError(f"explain_gradient: expected an ODEProblem; got {type(prob).__name__}.")
    u0, params = check_state(prob.u0), split_params(prob.p)
    names = _names(prob.p, params)
    inexact = [i for i, x in enumerate(params.dynamic) if jnp.issubdtype(jnp.result_type(x), jnp.inexact)]
    callback = prob.options.get("callback") if callback is None else callback
    running_cost = prob.options.get("running_cost") if running_cost is None else running_cost
    traced = [
        _trace(label, kind, function, extra, params, u0, writes)
        for label, kind, function, extra, writes in _functions(prob.f, callback, running_cost, u0)
    ]
    ways = _reach(traced, inexact)
    held = [(t.label, name, x) for t in traced for name, x in arrays_held(t.function) if not is_reference(x)]
    zeros = tuple(_zero(names[i], params.dynamic[i], ways[i], held) for i in inexact if LIVE not in ways[i])
    captured = [_describe(t, const) for t in traced for const in t.consts]
    captured += [_number(label, name, x) for label, name, x in held if isinstance(x, float)]
    notes = (*_carried(prob.p, params, names), *_unread(traced, u0, len(params.dynamic)))
    return GradientExplanation(zeros, tuple(captured), notes)


def _names(p: Any, params: Any) -> list[str]:
    """Names of the dynamic leaves."""
    paths = jax.tree_util.tree_leaves_with_path(p)
    return params.dynamic_of([f"p{jax.tree_util.keystr(path)}" for path, _ in paths])


def _functions(f: Callable, callback: Any, cost: Any, u0: Any) -> Iterator[tuple[str, str, Callable, Any, bool]]:
    """``(label, kind, function, shape of a fourth argument or None, writes parameters)`` of a problem."""
    real = np.finfo(np.result_type(*(x.dtype for x in jax.tree.leaves(u0)))).dtype
    time, index = jax.ShapeDtypeStruct((), real), jax.ShapeDtypeStruct((), np.dtype(np.int32))
    yield "f", "rhs", f, None, False
    if cost is not None:
        yield "running_cost", "cost", cost, None, False
    callbacks = as_callbacks(callback)
    for i, c in enumerate(callbacks):
        of = f"{type(c).__name__} {i}" if len(callbacks) > 1 else type(c).__name__
        extra = None
        if isinstance(c, DiscreteCallback):
            extra = time
            yield f"condition of {of}", "test", c.condition, time if takes_four(c.condition) else None, False
        elif isinstance(c, ContinuousCallback):
            extra = index
            yield f"condition of {of}", "condition", c.condition, None, False
        affects = {"affect": c.affect, "affect_neg": getattr(c, "affect_neg", None)}  # type: ignore[attr-defined]
        if affects["affect_neg"] is affects["affect"]:
            del affects["affect_neg"]
        for name, affect in affects.items():
            if affect is not None:
                four = extra if extra is not None and takes_four(affect) else None
                yield f"{name} of {of}", "affect", affect, four, c.affects_params


def _trace(label, kind, function, extra, params, u0, writes) -> _Traced:
    real = np.finfo(np.result_type(*(x.dtype for x in jax.tree.leaves(u0)))).dtype


    def traceable(dynamic, u, t, *x):
        out = function(u, params.rebuild(dynamic), t, *x)
        if not writes:
            return out, ()
        return out[0], params.dynamic_of(jax.tree.leaves(out[1]))

    got = capture(
        traceable,
        params.dynamic,
        u0,
        jax.ShapeDtypeStruct((), real),
        *(() if extra is None else (extra,)),
        owner=function,
    )
    count = len(params.dynamic) + len(jax.tree.leaves(u0))
    inputs: list[Flow] = [{i: frozenset([LIVE])} for i in range(count)]
    outs = follow(got.jaxpr, [*inputs, *({} for _ in got.jaxpr.invars[count:])])
    seen = len(outs) - (len(params.dynamic) if writes else 0)
    return _Traced(label, function, kind, merge(*outs[:seen]), tuple(outs[seen:]), got.consts)


def _reach(traced: list[_Traced], inexact: list[int]) -> dict[int, frozenset[Loss]]:
    """How each leaf of p reaches what the loss can see, through parameters that events write as well."""
    seen = merge(*(t.state for t in traced))
    ways = {i: seen.get(i, frozenset()) for i in inexact}
    while True:
        grown = dict(ways)
        for t in traced:
            for target, flow in enumerate(t.params):
                onward = ways.get(target, frozenset())
                for i in inexact:
                    if i != target and i in flow and onward:
                        lost = (flow[i] | onward) - {LIVE}
                        grown[i] = grown[i] | (lost or frozenset([LIVE]))
        if grown == ways:
            return ways
        ways = grown


def _zero(name: str, value: Any, ways: frozenset[Loss], captured: list) -> ZeroGradient:
    if ways:
        causes = tuple(sorted({w.reason for w in ways}))
        return ZeroGradient(name, causes, f"Every path from it ends: {'; '.join(sorted(map(str, ways)))}.")
    for label, held, const in captured:
        if _stands_for(name, value, held, const):
            detail = f"No function reads it, but {label} closes over {held}, which has its value: read it from p there."
            return ZeroGradient(name, (CONSTANT,), detail)
    return ZeroGradient(name, (UNUSED,), "No right-hand side, affect, condition or cost reads it.")


def _stands_for(leaf: str, value: Any, held: str, const: Any) -> bool:
    """Whether a captured array is a leaf's value; single numbers are equal by chance, and must have the leaf's name too."""
    if isinstance(value, core.Tracer) or isinstance(const, core.Tracer):
        return value is const
    a, b = np.asarray(value), np.asarray(const)
    named = held.split(".")[-1] in leaf.replace("'", " ").replace(".", " ").replace("]", " ").split()
    return a.shape == b.shape and a.size > 0 and bool(np.all(a == b)) and (a.size > 1 or named)


def _name_of(const: Any, function: Any) -> str:
    """What a captured array is called in the function: by identity, else by memory or value."""
    held = arrays_held(function)
    for name, x in held:
        if x is const:
            return name
    if isinstance(const, core.Tracer):
        return "an unnamed traced array"
    array = np.asarray(const)
    concrete = [(n, np.asarray(x)) for n, x in held if not isinstance(x, core.Tracer)]
    for name, x in concrete:
        if np.shares_memory(x, array):
            return name
    for name, x in concrete:
        if x.shape == array.shape and np.array_equal(x, array):
            return name
    sources = [name for name, x in held if isinstance(x, np.ndarray)]
    return f"an unnamed array, perhaps computed from {', '.join(sources)}" if sources else "an unnamed array"


def _number(label: str, name: str, x: float) -> CapturedConstant:
    kind = "a Python number: part of the computation, and a new value compiles anew outside jit; no gradient"
    return CapturedConstant(label, name, (), "float", f"= {x!r}", kind)


def _describe(traced: _Traced, const: Any) -> CapturedConstant:
    name = _name_of(const, traced.function)
    shape, dtype = tuple(np.shape(const)), str(jnp.result_type(const))
    if isinstance(const, core.Tracer):
        return CapturedConstant(traced.label, name, shape, dtype, "(traced)", "traced, so that it gets a gradient")
    held = dict(arrays_held(traced.function)).get(name)
    what = "a NumPy array" if isinstance(held, np.ndarray) else "a constant"
    kind = f"{what}: read again by every solve outside jit, frozen into an enclosing jit when that is traced; no gradient"
    return CapturedConstant(traced.label, name, shape, dtype, _summary(np.asarray(const)), kind)


def _summary(x: np.ndarray) -> str:
    if x.size == 0:
        return "(empty)"
    if x.size <= 4:
        return "= " + np.array2string(x, precision=6, separator=", ")
    if x.dtype.kind in "fiu":
        return f"from {x.min():.6g} to {x.max():.6g}"
    return f"starting with {x.flat[0]}"


def _carried(p: Any, params: Any, names: list[str]) -> Iterator[str]:
    for name, x, key in zip(names, params.dynamic, params.keys, strict=True):
        if key is None and not jnp.issubdtype(jnp.result_type(x), jnp.inexact):
            yield f"{name} is {jnp.result_type(x)}: carried, without a gradient. Give it as floating point to learn it."
    paths = jax.tree_util.tree_leaves_with_path(p)
    for path, x in paths:
        if isinstance(x, int) and not isinstance(x, bool):
            yield f"p{jax.tree_util.keystr(path)} is the Python integer {x}: carried, without a gradient."


def _unread(traced: list[_Traced], u0: Any, start: int) -> Iterator[str]:
    """Components of the state that do not enter du/dt."""
    flow = merge(*(t.state for t in traced if t.kind == "rhs"))
    for i, (path, _) in enumerate(jax.tree_util.tree_leaves_with_path(u0)):
        ways = flow.get(start + i, frozenset())
        if LIVE not in ways:
            how = "; ".join(sorted(map(str, ways))) or "not read at all"
            yield f"u0{jax.tree_util.keystr(path)} does not enter f ({how}): its gradient is that of saved rows and events."
