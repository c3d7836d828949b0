"""Lanes: how one adaptive loop serves a single solve and a vmapped one.

JAX's own batching rule for `while_loop` turns every carried buffer into a select over the whole buffer at every
iteration. Here a loop is bound as one primitive, whose batching rule does something better: the vmapped axis becomes
one more *level* of lanes. Inside, all levels are merged into one leading axis of ``B`` lanes, each with its own step
size, and arguments that no level maps (the weights of a shared network) stay single, so that a product with them
stays one matrix product.

A loop is described by a `LaneFunction`. Its ``run(context, *args)`` sees merged arrays; `call_lanes` binds it.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import Any, Callable, NamedTuple, Sequence

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from . import one_kernel, tiles
from .tiles import Tiling, in_tiles


@contextlib.contextmanager
def own_promotion():
    """The library's own arithmetic is written for standard promotion, whatever the user set for theirs."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


class Level(NamedTuple):
    """One vmapped axis: its size, and which arguments carry it."""

    size: int
    mapped: tuple[bool, ...]


class LaneContext(NamedTuple):
    """What a run needs to know of its lanes.

    ``size``: number of lanes B. ``shared[i]``: argument i came without a lane axis. ``total``: results that stand for
    a shared argument (its cotangent) are to be summed over the lanes, and come back without a lane axis. ``tiled``: these
    lanes are a tile, and in one kernel.
    """

    size: int
    shared: tuple[bool, ...]
    total: bool
    tiled: bool = False


def lanes_of(levels: tuple[Level, ...]) -> int:
    return math.prod(level.size for level in levels)


class Out(NamedTuple):
    """One result: the position of its lane axis (None: the same for all lanes), and what it is a cotangent of."""

    axis: int | None = 0
    cotangent_of: int | None = None


@dataclass(eq=False)
class LaneFunction:
    """A function over lanes.

    ``run(context, *args)`` gets every argument with ``lane_args[i]`` True broadcast to B lanes at axis ``in_axes[i]``;
    the others keep no lane axis unless a vmap gave them one. ``outs`` describes the results. ``base``: the number of
    innermost levels over which cotangents of unmapped arguments are summed. ``derivative(levels, primals, tangents)``,
    if given, replaces the jvp of the loop itself; ``transpose(cotangents, *args, levels=...)`` is for functions that are
    linear in some of their arguments. ``outline``, if given, has the results of ``run`` in shape and dtype and is traced
    sooner: a solve under `jax.grad` is asked for its shapes, and then another one, with a record, takes its place.
    ``tiling``, if given, is another way to the results for more than one lane, taken where it makes one kernel of a tile.
    """

    run: Callable[..., Sequence[Any]]
    in_axes: tuple[int, ...]
    lane_args: tuple[bool, ...]
    outs: tuple[Out, ...]
    base: int = 0
    derivative: Callable | None = None
    transpose: Callable | None = None
    outline: Callable[..., Sequence[Any]] | None = None
    tiling: Tiling | None = None

    def __post_init__(self):
        self._traced: dict = {}
        self._tiled: set = set()

    def jaxpr(self, levels: tuple[Level, ...], avals: tuple) -> Any:
        """The function for these levels and shapes, traced once."""
        key = (levels, avals, one_kernel.active())
        if key not in self._traced:
            self._traced[key] = self._in_tiles(key) or self._trace(self.run, levels, avals)
        return self._traced[key]

    def most_in_kernels(self, levels: tuple[Level, ...], avals: tuple) -> int:
        """Numbers in an array that an operation in a kernel may make; 0: it is better without kernels."""
        if lanes_of(levels) == 1:
            return one_kernel.MOST
        self.jaxpr(levels, avals)
        return tiles.MOST if (levels, avals, True) in self._tiled else 0

    def _in_tiles(self, key: tuple) -> Any:
        """The function in tiles, None where a tile is not one kernel."""
        tiling, (levels, avals, active) = self.tiling, key
        if tiling is None or not active or lanes_of(levels) <= 1:
            return None
        traced = self._trace(lambda context, *args: in_tiles(self, tiling, context, args), levels, avals)
        if not one_kernel.whole(traced.jaxpr, tiles.MOST):
            return None
        self._tiled.add(key)
        return traced

    def shapes(self, levels: tuple[Level, ...], avals: tuple) -> tuple[Sequence[Any], Any]:
        """Shapes of the results, and the effects of the function."""
        if self.outline is None or (levels, avals, one_kernel.active()) in self._traced:
            traced = self.jaxpr(levels, avals)
        else:
            traced = self._trace(self.outline, levels, avals)
        return traced.out_avals, traced.effects

    def _trace(self, run: Callable[..., Sequence[Any]], levels: tuple[Level, ...], avals: tuple) -> Any:
        shapes = [jax.ShapeDtypeStruct(s, d, weak_type=False) for s, d in avals]
        with own_promotion():
            return jax.make_jaxpr(lambda *args: self._flat(run, levels, args))(*shapes)

    def _flat(self, run: Callable[..., Sequence[Any]], levels: tuple[Level, ...], args: Sequence[Any]) -> list[Any]:
        sizes = [level.size for level in levels]
        count = lanes_of(levels)
        shared = tuple(not any(level.mapped[i] for level in levels) for i in range(len(args)))
        merged = []
        for i, arg in enumerate(args):
            if shared[i] and not self.lane_args[i]:
                merged.append(arg)
                continue
            axis = self.in_axes[i]
            at = axis
            for level in levels:
                if not level.mapped[i]:
                    arg = jnp.broadcast_to(
                        jnp.expand_dims(arg, at), arg.shape[:at] + (level.size,) + arg.shape[at:]
                    )
                at += 1
            merged.append(arg.reshape(arg.shape[:axis] + (count,) + arg.shape[axis + len(sizes) :]))
        total = self.base >= len(levels)
        results = run(LaneContext(count, shared, total), *merged)
        return [self._split(out, x, levels, shared, total) for out, x in zip(self.outs, results, strict=True)]

    def _split(self, out: Out, x, levels: tuple[Level, ...], shared: tuple[bool, ...], total: bool):
        target = out.cotangent_of
        if out.axis is None or (target is not None and not self.lane_args[target] and shared[target] and total):
            return x
        sizes = tuple(level.size for level in levels)
        x = x.reshape(x.shape[: out.axis] + sizes + x.shape[out.axis + 1 :])
        if target is not None:
            outer = len(levels) - self.base
            summed = [out.axis + j for j, level in enumerate(levels) if j >= outer and not level.mapped[target]]
            x = jnp.sum(x, axis=tuple(summed)) if summed else x
        return x


lanes_p = Primitive("hybridax_lanes")
lanes_p.multiple_results = True


def call_lanes(function: LaneFunction, *args, levels: tuple[Level, ...] = ()) -> list[Any]:
    """Apply ``function`` to ``args``; under `jax.vmap` the mapped axes become lanes."""
    return lanes_p.bind(*map(jnp.asarray, args), function=function, levels=levels)


def _avals(args) -> tuple:
    return tuple((x.shape, x.dtype) for x in args)


def _function_of(args, function: LaneFunction, levels) -> Callable:
    return jaxpr_as_fun(function.jaxpr(levels, _avals(args)))


@lanes_p.def_impl
def _impl(*args, function, levels):
    return jax.jit(_function_of(args, function, levels))(*args)


@lanes_p.def_effectful_abstract_eval
def _abstract_eval(*args, function, levels):
    return function.shapes(levels, _avals(args))


def _lower(*args, function, levels):
    return _function_of(args, function, levels)(*args)


mlir.register_lowering(lanes_p, mlir.lower_fun(_lower, multiple_results=True))


def _lower_in_kernels(*args, function, levels):
    most = function.most_in_kernels(levels, _avals(args))
    return one_kernel.evaluate(function.jaxpr(levels, _avals(args)), args, most)


def _lower_on_cpu(ctx, *args, function, levels):
    avals = tuple((x.shape, x.dtype) for x in ctx.avals_in)
    cut = one_kernel.active() and one_kernel.on_one_device(ctx) and function.most_in_kernels(levels, avals)
    lower = mlir.lower_fun(_lower_in_kernels if cut else _lower, multiple_results=True)
    return lower(ctx, *args, function=function, levels=levels)


mlir.register_lowering(lanes_p, _lower_on_cpu, platform="cpu")


def _batch(args, dims, *, function, levels):
    size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
    mapped = tuple(d is not None for d in dims)
    moved = [
        jnp.moveaxis(x, d, axis) if m else x
        for x, d, m, axis in zip(args, dims, mapped, function.in_axes, strict=True)
    ]
    outs = lanes_p.bind(*moved, function=function, levels=(Level(size, mapped), *levels))
    return outs, [out.axis for out in function.outs]


batching.primitive_batchers[lanes_p] = _batch


def _jvp(primals, tangents, *, function, levels):
    if function.derivative is not None:
        return function.derivative(levels, primals, tangents)
    moving = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]

    def along(*values):
        args = list(primals)
        for i, value in zip(moving, values, strict=True):
            args[i] = value
        return _function_of(args, function, levels)(*args)

    outs, dots = jax.jvp(along, [primals[i] for i in moving], [tangents[i] for i in moving])
    return outs, [
        ad.Zero(jax.typeof(x).to_tangent_aval()) if d.dtype == jax.dtypes.float0 else d
        for x, d in zip(outs, dots, strict=True)
    ]


ad.primitive_jvps[lanes_p] = _jvp


def _transpose(cotangents, *args, function, levels):
    if function.transpose is None:
        raise NotImplementedError("reverse-mode differentiation of an adaptive loop needs a sensitivity method")
    return function.transpose(cotangents, *args, levels=levels)


ad.primitive_transposes[lanes_p] = _transpose
