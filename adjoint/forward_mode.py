"""Derivatives of a loop by tangents alongside its state.

`tangent_rule` gives a lane function a derivative that works both ways. Forwards, tangents run along with the loop. The
map from tangents to tangents is a lane function of its own, linear and without a record; transposed, it becomes a third
one, which runs the loop along every basis direction and contracts the results with the cotangents. So `jax.jvp`,
`jax.jacfwd` and `jax.grad` all work, and forward mode over each of them; reverse mode over a derivative does not.

Cost of a gradient: one solve with a tangent for each of the m input numbers, `DIRECTIONS` of them at a time.
"""

from __future__ import annotations

from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.interpreters import ad

from ..solvers.lanes import LaneContext, LaneFunction, Level, Out, call_lanes

DIRECTIONS = 64


def tangent_rule(function: LaneFunction) -> Callable:
    """A ``derivative`` for ``function``, which itself must have none."""
    functions: dict = {}

    def derivative(levels: tuple[Level, ...], primals, tangents):
        moving = tuple(i for i, t in enumerate(tangents) if type(t) is not ad.Zero)
        outs = call_lanes(function, *primals, levels=levels)
        if moving not in functions:
            functions[moving] = _tangents(function, moving, tuple(is_real_or_complex(x) for x in outs))
        extended = tuple(Level(v.size, v.mapped + tuple(v.mapped[i] for i in moving)) for v in levels)
        dots = iter(call_lanes(functions[moving], *primals, *(tangents[i] for i in moving), levels=extended))
        return outs, [next(dots) if is_real_or_complex(x) else _zero(x) for x in outs]

    return derivative


def is_real_or_complex(x: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jnp.inexact)


def _zero(x):
    return ad.Zero(jax.typeof(x).to_tangent_aval())


def _tangents(function: LaneFunction, moving: tuple[int, ...], floats: tuple[bool, ...]) -> LaneFunction:
    """``(primals, tangents of the moving ones) -> tangents of the floating-point results``."""
    count = len(function.in_axes)

    def run(context: LaneContext, *args):
        primals, dots = list(args[:count]), list(args[count:])
        shared = list(context.shared[:count])
        for j, i in enumerate(moving):
            primals[i], dots[j], shared[i] = _alike(
                context, function, i, primals[i], dots[j], (shared[i], context.shared[count + j])
            )
        return _along(function, LaneContext(context.size, tuple(shared), context.total), primals, moving, dots, floats)

    outs = tuple(Out(out.axis) for out, f in zip(function.outs, floats, strict=True) if f)
    in_axes = function.in_axes + tuple(function.in_axes[i] for i in moving)
    lane_args = function.lane_args + tuple(function.lane_args[i] for i in moving)
    transposes: dict = {}

    def transpose(cotangents, *args, levels):
        linear = tuple(j for j in range(len(moving)) if ad.is_undefined_primal(args[count + j]))
        key = (len(levels), linear)
        if key not in transposes:
            wanted = tuple(moving[j] for j in linear)
            transposes[key] = _contractions(function, wanted, floats, len(levels))
        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in _results(function, levels, args[:count])]
        shapes = [s for s, f in zip(shapes, floats, strict=True) if f]
        bars = [
            jnp.zeros(s.shape, s.dtype) if type(c) is ad.Zero else c for c, s in zip(cotangents, shapes, strict=True)
        ]
        extended = tuple(Level(v.size, v.mapped[:count] + (True,) * len(bars)) for v in levels)
        grads = iter(call_lanes(transposes[key], *args[:count], *bars, levels=extended))
        return [None] * count + [next(grads) if j in linear else None for j in range(len(moving))]

    return LaneFunction(run, in_axes, lane_args, outs, transpose=transpose)


def _results(function: LaneFunction, levels, primals):
    inner = tuple(Level(v.size, v.mapped[: len(primals)]) for v in levels)
    return function.jaxpr(inner, tuple((x.shape, x.dtype) for x in primals)).out_avals


def _alike(context: LaneContext, function: LaneFunction, i: int, primal, dot, shared: tuple[bool, bool]):
    """Primal and tangent with lanes both or neither."""
    if function.lane_args[i] or shared[0] == shared[1]:
        return primal, dot, shared[0]
    spread = lambda x: jnp.broadcast_to(x, (context.size, *x.shape))  # noqa: E731
    return (spread(primal) if shared[0] else primal), (spread(dot) if shared[1] else dot), False


def _along(function, context, primals, moving, dots, floats) -> list[Array]:
    def moved(*values):
        full = list(primals)
        for i, value in zip(moving, values, strict=True):
            full[i] = value
        return [x for x, f in zip(function.run(context, *full), floats, strict=True) if f]

    return jax.jvp(moved, tuple(primals[i] for i in moving), tuple(dots))[1]


def _contractions(function: LaneFunction, wanted: tuple[int, ...], floats, base: int) -> LaneFunction:
    """``(primals, cotangents of the results) -> cotangents of the ``wanted`` arguments``, direction by direction."""
    count = len(function.in_axes)
    float_outs = tuple(out for out, f in zip(function.outs, floats, strict=True) if f)

    def run(context: LaneContext, *args):
        primals, bars = args[:count], args[count:]
        inner, lanes = LaneContext(context.size, context.shared[:count], context.total), context.size
        own = [function.lane_args[i] or not inner.shared[i] for i in wanted]
        basis = Basis([primals[i].shape[1:] if o else primals[i].shape for i, o in zip(wanted, own, strict=True)],
                      [primals[i].dtype for i in wanted])  # fmt: skip

        def entry(k):
            directions = tuple(jnp.broadcast_to(e, primals[i].shape) for i, e in zip(wanted, basis(k), strict=True))
            return _pairing(float_outs, bars, _along(function, inner, primals, wanted, directions, floats), lanes)

        if basis.size == 0:
            return [jnp.zeros_like(primals[i]) for i in wanted]
        entries = lax.map(entry, jnp.arange(basis.size, dtype=np.int32), batch_size=min(DIRECTIONS, basis.size))
        grads = basis.collect(entries)
        return [g if o or not context.total else jnp.sum(g, 0) for g, o in zip(grads, own, strict=True)]

    in_axes = function.in_axes + tuple(0 if o.axis is None else o.axis for o in float_outs)
    lane_args = function.lane_args + (True,) * len(float_outs)
    return LaneFunction(run, in_axes, lane_args, tuple(Out(0, i) for i in wanted), base)


class Basis:
    """The directions of several arrays, laid end to end; a complex entry has two, 1 and i."""

    def __init__(self, shapes, dtypes):
        self.shapes, self.dtypes = shapes, dtypes
        self.complex = [jnp.issubdtype(d, jnp.complexfloating) for d in dtypes]
        self.counts = [int(np.prod(s)) for s in shapes]
        widths = [n * (2 if z else 1) for n, z in zip(self.counts, self.complex, strict=True)]
        self.offsets = np.cumsum([0, *widths])
        self.size = int(self.offsets[-1])

    def __call__(self, k: Array) -> list[Array]:
        """Direction ``k``: an array of each shape, all zero but one entry."""
        arrays = []
        for shape, dtype, n, z, low in zip(
            self.shapes, self.dtypes, self.counts, self.complex, self.offsets, strict=False
        ):
            place = jnp.arange(n, dtype=np.int32) + np.int32(low)
            hot = (place == k).astype(dtype)
            if z:
                hot = hot + np.asarray(1j, dtype) * (place + np.int32(n) == k).astype(dtype)
            arrays.append(hot.reshape(shape))
        return arrays

    def collect(self, entries: Array) -> list[Array]:
        """From ``entries (size, B)`` the arrays, lanes in front. Re(bar dx) is the change of the loss."""
        arrays = []
        for shape, dtype, n, z, low in zip(
            self.shapes, self.dtypes, self.counts, self.complex, self.offsets, strict=False
        ):
            bar = entries[low : low + n]
            bar = bar - 1j * entries[low + n : low + 2 * n] if z else bar
            arrays.append(bar.T.astype(dtype).reshape(-1, *shape))
        return arrays


def _pairing(outs: tuple[Out, ...], bars, dots, lanes: int) -> Array:
    """``Re sum_i bar_i dot_i`` for every lane, ``(B,)``."""
    total = jnp.zeros(lanes)
    for out, bar, dot in zip(outs, bars, dots, strict=True):
        # what nothing depends on may have no derivative
        product = jnp.moveaxis(jnp.where(bar == 0, 0, bar * dot), out.axis or 0, 0).real
        total = total + jnp.sum(product.reshape(lanes, -1), -1)
    return total
