"""From a problem to a `System`: pack the pytrees, capture the functions, check what they return."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from ..solvers import one_kernel
from ..solvers.callbacks import Callback, ContinuousCallback, DiscreteCallback
from ..solvers.components import STATE, is_light, program_of
from ..solvers.explicit import ExplicitRungeKutta
from ..solvers.packing import Packing, packing_of
from ..solvers.system import EventSpec, System
from .capture import Captured, Opaque, capture, fingerprint
from .params import is_inexact, split_params
from .returns import check_bool, check_condition, check_cost, check_like, check_params
from .vjp import HandWrittenVJP, VJPBackend
from .vjp.host_primitive import calls_host_one_by_one


@dataclass(frozen=True, eq=False)
class Assembled:
    """A system with the arrays that belong to it, and a key that tells systems apart."""

    system: System
    theta: tuple[Any, ...]
    diff: tuple[int, ...]
    packing: Packing
    has_cost: bool
    strict_key: tuple | None
    loose_key: tuple


def assemble(
    f: Callable,
    u0: Any,
    p: Any,
    callbacks: tuple[Callback, ...],
    running_cost: Callable | None,
    solver: ExplicitRungeKutta,
    backend: VJPBackend,
) -> Assembled:
    """Capture everything; raises on functions that return the wrong thing."""
    packing, params = packing_of(u0), split_params(p)
    state_dtype, has_cost = packing.dtype, running_cost is not None
    real = np.finfo(state_dtype).dtype
    u_shape = jax.ShapeDtypeStruct((packing.size,), state_dtype)
    t_shape = jax.ShapeDtypeStruct((), real)
    count = len(params.dynamic)
    inexact = tuple(i for i, x in enumerate(params.dynamic) if is_inexact(x))
    writes = any(c.affects_params for c in callbacks)
    p_packing = packing_of([params.dynamic[i] for i in inexact]) if writes else None

    captured: list[Captured] = []
    start = count

    def keep(owner: Callable, function: Callable, *extra: Any) -> Callable:
        """Capture ``function(u_tree, p, t, *extra)`` and return it as ``(flat u, theta, t, *extra)``.

        ``owner`` is the user's own function inside it.
        """
        nonlocal start
        got = capture(
            lambda u, dynamic, t, *x: function(packing.unpack(u), params.rebuild(dynamic), t, *x),
            u_shape,
            params.dynamic,
            t_shape,
            *extra,
            owner=owner,
        )
        low, start = start, start + len(got.consts)
        captured.append(got)
        return lambda u, theta, t, *x: got(
            theta[low : low + len(got.consts)], u[..., : packing.size], theta[:count], t, *x
        )

    def checked_f(u, q, t):
        return check_like("f", f(u, q, t), u)

    checked_f.__wrapped__ = f  # for backends that know their own right-hand side

    rhs = keep(f, lambda u, q, t: packing.pack(backend.dress(checked_f)(u, q, t)))
    if running_cost is not None:
        cost = keep(running_cost, lambda u, q, t: check_cost(running_cost(u, q, t)).astype(state_dtype))
        plain = rhs
        rhs = lambda u, theta, t: jnp.append(plain(u, theta, t), cost(u, theta, t))  # noqa: E731

    def pack_params(theta):
        return p_packing.pack_leaves([theta[i] for i in inexact])

    def with_params(theta, packed):
        theta = list(theta)
        for i, x in zip(inexact, p_packing.unpack_leaves(packed), strict=True):
            theta[i] = x
        return tuple(theta)

    def keep_affect(callback: Callback, affect: Callable, extra: Any, vjp: Any = None) -> Callable:
        own, affect = affect, _dressed("affect_vjp", affect, vjp)

        def checked(u, q, t, x):
            args = (u, q, t) if x is None else (u, q, t, x)
            out = affect(*args)
            if not callback.affects_params:
                return packing.pack(check_like("affect", out, u)), None
            if not (isinstance(out, tuple) and len(out) == 2):
                raise TypeError(
                    "affect with affects_params=True must return the pair (u, p); "
                    f"got {type(out).__name__}."
                )
            new = check_params(out[1], q)
            return packing.pack(check_like("affect", out[0], u)), p_packing.pack_leaves(new)

        extras = () if extra is None else (extra,)
        inner = keep(own, lambda u, q, t, *x: checked(u, q, t, *(x or (None,))), *extras)

        def call(u, theta, t, x):
            new, packed = inner(u, theta, t) if extra is None else inner(u, theta, t, x)
            if has_cost:
                new = jnp.append(new, u[-1])
            if packed is None and writes:
                packed = pack_params(theta)
            return new, packed

        return call

    specs = tuple(_event_spec(c, keep, keep_affect, t_shape) for c in callbacks)
    theta = params.dynamic + tuple(x for c in captured for x in c.consts)
    theta = tuple(jnp.asarray(x) for x in theta)
    size = packing.size + has_cost
    judged = size <= STATE or one_kernel.active()
    program = program_of(rhs, jax.ShapeDtypeStruct((size,), state_dtype), theta, t_shape) if judged else None
    system = System(
        solver.tableau,
        solver.adaptive,
        rhs,
        specs,
        state_dtype,
        None if p_packing is None else p_packing.size,
        pack_params,
        with_params,
        size,
        has_cost,
        getattr(backend, "vectorises", True) and not calls_host_one_by_one(captured[0].jaxpr),
        program if program is not None and is_light(program) else None,
        program is not None and one_kernel.takes(program.jaxpr),
        not any(c.jaxpr.effects for c in captured),
    )
    flags = tuple(
        (s.kind, s.affect_neg is None, s.affect_up, s.save_left, s.save_right, s.components, s.terminate, s.reverse_only)
        for s in specs
    )
    shapes = tuple((x.shape, str(x.dtype)) for x in theta)
    common = (packing, solver, backend, flags, writes, has_cost, count, inexact, shapes)
    return Assembled(
        system,
        theta,
        tuple(i for i, x in enumerate(theta) if is_inexact(x)),
        packing,
        has_cost,
        _strict(common, captured),
        (common, tuple(fingerprint(c.jaxpr, loose=True) for c in captured)),
    )


def _strict(common: tuple, captured: list[Captured]) -> tuple | None:
    try:
        return common, tuple(fingerprint(c.jaxpr) for c in captured)
    except Opaque:
        return None


def _event_spec(callback: Any, keep: Callable, keep_affect: Callable, t_shape: Any) -> EventSpec:
    left, right = callback.save_positions
    if isinstance(callback, DiscreteCallback):
        condition = callback.condition
        four = takes_four(condition)
        told = lambda u, q, t, s: condition(u, q, t, s) if four else condition(u, q, t)  # noqa: E731
        test = keep(condition, lambda *args: check_bool(told(*args)), t_shape)
        extra = t_shape if takes_four(callback.affect) else None
        affect = keep_affect(callback, callback.affect, extra, callback.affect_vjp)
        return EventSpec(
            "discrete",
            affect,
            save_left=left,
            save_right=right,
            condition=test,
            terminate=callback.terminate,
        )
    if isinstance(callback, ContinuousCallback):
        condition = _dressed("condition_vjp", callback.condition, callback.condition_vjp)
        sizes: list[int] = []
        vector: list[bool] = []

        def value(u, q, t, s):
            out = check_condition(condition(u, q, t))
            sizes.append(out.size)
            vector.append(out.ndim == 1)
            return jnp.reshape(out, (-1,)).astype(t.dtype)

        test = keep(callback.condition, value, t_shape)
        index = jax.ShapeDtypeStruct((), np.int32)

        def affect_of(function, vjp):
            return keep_affect(callback, function, index if vector[0] and takes_four(function) else None, vjp)

        up = (callback.affect, callback.affect_vjp) if callback.affect else (callback.affect_neg, callback.affect_neg_vjp)

        return EventSpec(
            "continuous",
            affect_of(*up),
            None if callback.affect_neg is None else affect_of(callback.affect_neg, callback.affect_neg_vjp),
            callback.affect is not None,
            left,
            right,
            test,
            sizes[0],
            callback.terminate,
            callback.condition_vjp is not None,
        )
    affect = keep_affect(callback, callback.affect, None, callback.affect_vjp)
    return EventSpec("known", affect, save_left=left, save_right=right)


def _dressed(name: str, function: Callable, vjp: Any) -> Callable:
    """An affect or a condition with its hand-written product, if it has one."""
    if vjp is None:
        return function
    backend = vjp if isinstance(vjp, VJPBackend) else HandWrittenVJP(vjp=vjp, label=name)
    return backend.dress(function)


def takes_four(function: Callable) -> bool:
    """Whether a function accepts a fourth positional argument."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return False
    kinds = [q.kind for q in signature.parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return True
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(k in positional for k in kinds) >= 4
