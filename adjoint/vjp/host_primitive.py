"""A NumPy function as a JAX primitive: its value, its transposed derivative, and nothing else.

    host(u, p, t)          the right-hand side, evaluated on the host
    host_linear(du, ...)   its derivative along tangents: only ever transposed, which calls the host's pullback

Only tangents that move are linear arguments, and the cotangents of u, p and t are separate calls where the host has
separate functions for them: what is not used is not called. Under `jax.vmap` every argument gets one more axis in front,
of length 1 where it is not mapped: a whole batch of points is one call from XLA to Python, and arrays that all points
share are not copied for each.

A call hands NumPy arrays to Python and takes NumPy arrays back (`mlir.emit_python_callback`), for a fifth of what
`jax.pure_callback` costs, which makes JAX arrays of its arguments first (benchmarks/host_calls.py).

Forward-mode and second derivatives are refused: nothing on the host could give them.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import core
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .host_errors import own_exceptions

FORWARD_MODE = (
    "HostVJP has no forward-mode derivative (jax.jvp, jax.jacfwd, jax.hessian, ForwardSensitivity): the host gives "
    "vector-Jacobian products only. Use reverse mode (jax.grad, jax.jacrev), or write the right-hand side in JAX."
)
SECOND_ORDER = (
    "HostVJP has first derivatives only: a second derivative was asked of its vector-Jacobian product (jax.hessian, or "
    "jax.jvp or jax.grad of jax.grad). Write the right-hand side in JAX, or difference the gradient."
)

host_p = Primitive("hybridax_host")
host_linear_p = Primitive("hybridax_host_linear")
host_p.multiple_results = host_linear_p.multiple_results = True

Outs = tuple[tuple[tuple[int, ...], Any], ...]  # shape, batch axes in front, and dtype of each result


def call_host(*args: Any, call: Any, outs: Outs) -> list[Any]:
    """Evaluate ``call`` (see `host_calls.HostCall`) at one point."""
    return host_p.bind(*map(jnp.asarray, args), call=call, outs=outs, batch=())


def calls_host_one_by_one(jaxpr: Any) -> bool:
    """Whether a traced right-hand side calls a host that takes one point at a time."""
    for eqn in jaxpr.eqns:
        if eqn.primitive is host_p and not eqn.params["call"].host.batched:
            return True
        for x in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(x, "jaxpr", x)
            if hasattr(inner, "eqns") and calls_host_one_by_one(inner):
                return True
    return False


def _avals(*args, outs: Outs, **_):
    return [core.ShapedArray(shape, dtype) for shape, dtype in outs]


host_p.def_abstract_eval(_avals)
host_linear_p.def_abstract_eval(_avals)


@functools.lru_cache(maxsize=64)
def _compiled(call, outs: Outs, batch: tuple[int, ...]):
    return jax.jit(functools.partial(host_p.bind, call=call, outs=outs, batch=batch))


@host_p.def_impl
def _evaluate(*args, call, outs: Outs, batch):
    with own_exceptions():
        return jax.block_until_ready(_compiled(call, outs, batch)(*args))


def _lower(ctx, *args, call, outs: Outs, batch):
    results, _, _ = mlir.emit_python_callback(
        ctx,
        functools.partial(call.run, batch, outs),
        None,
        list(args),
        ctx.avals_in,
        ctx.avals_out,
        has_side_effect=False,
        returns_token=False,
    )
    return results


mlir.register_lowering(host_p, _lower, cacheable=False)


# ------------------------------------------------------------------ derivative
def _jvp(primals, tangents, *, call, outs: Outs, batch):
    if call.wanted is not None:
        raise TypeError(SECOND_ORDER)
    moving = tuple(i for i, t in enumerate(tangents) if type(t) is not ad.Zero and t.dtype != jax.dtypes.float0)
    values = host_p.bind(*primals, call=call, outs=outs, batch=batch)
    if not moving:
        return values, [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in values]
    dots = [tangents[i] for i in moving]
    return values, host_linear_p.bind(*dots, *primals, call=call, moving=moving, outs=outs, batch=batch)


ad.primitive_jvps[host_p] = _jvp


def _transpose(cotangents, *args, call, moving, outs: Outs, batch):
    linear, primals = args[: len(moving)], args[len(moving) :]
    if any(ad.is_undefined_primal(x) for x in primals):
        raise TypeError(SECOND_ORDER)
    zeros = [jnp.zeros(shape, dtype) for shape, dtype in outs]
    lam = [z if type(c) is ad.Zero else c for c, z in zip(cotangents, zeros, strict=True)]
    avals = {i: x.aval for i, x in zip(moving, linear, strict=True) if ad.is_undefined_primal(x)}
    bars: dict[int, Any] = {}
    for wanted in call.parts(tuple(avals)):
        shapes = tuple((avals[i].shape, np.dtype(avals[i].dtype)) for i in wanted)
        results = host_p.bind(*primals, *lam, call=call.pullback(wanted), outs=shapes, batch=batch)
        bars |= zip(wanted, results, strict=True)
    return [bars.get(i) for i in moving] + [None] * len(primals)


ad.primitive_transposes[host_linear_p] = _transpose


def _refuse_forward_mode(*_, **__):
    raise TypeError(FORWARD_MODE)


def _refuse_second_order(*_, **__):
    raise TypeError(SECOND_ORDER)


host_linear_p.def_impl(_refuse_forward_mode)
mlir.register_lowering(host_linear_p, _refuse_forward_mode)
ad.primitive_jvps[host_linear_p] = _refuse_second_order


# ------------------------------------------------------------------ vmap
def _batch(primitive: Primitive):
    def rule(args, dims, *, outs: Outs, batch: tuple[int, ...], **params):
        size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
        moved = [
            jnp.expand_dims(x, 0) if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(args, dims, strict=True)
        ]
        outs = tuple(((size, *shape), dtype) for shape, dtype in outs)
        return primitive.bind(*moved, outs=outs, batch=(size, *batch), **params), [0] * len(outs)

    return rule


batching.primitive_batchers[host_p] = _batch(host_p)
batching.primitive_batchers[host_linear_p] = _batch(host_linear_p)
