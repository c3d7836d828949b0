"""Many lanes as tiles of few, one tile after another, where a tile is one native function.

What a tile of some dozens of lanes works on stays in the processor's first caches, and its loop ends when its own lanes have
ended. Tiles overlap where their number does not divide that of the lanes: lanes that are computed twice come out the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters import partial_eval as pe

if TYPE_CHECKING:
    from .lanes import LaneContext, LaneFunction

LANES = 16, 32  # the fewest and the most of a tile
TILES = 8  # at least, where that leaves enough lanes for each: the record of a tile is then small beside that of all lanes
VECTOR = 8  # lanes that the processor takes at once
MOST = 2**17  # numbers in an array that an operation of a tile makes


def _nothing(lanes: int) -> tuple:
    return ()


def tile_lanes(count: int) -> int:
    """Lanes of a tile of ``count`` in all, whole vectors where there are several tiles."""
    if count <= LANES[1]:
        return count
    most = int(np.clip(count // TILES, *LANES))
    even = -(-count // -(-count // most))  # tiles of much the same size
    return -(-even // VECTOR) * VECTOR


@dataclass(frozen=True)
class Tiling:
    """How a function over lanes is computed in tiles.

    ``run(context, scratch, *args) -> (results, scratch)``: of some lanes, every result with a lane axis; cotangents of shared
    arguments are each lane's own. ``scratch(lanes)``: arrays that it may overwrite, handed from tile to tile.
    ``finish(lanes, results)``: all results, from those of ``run`` for all lanes.
    """

    run: Callable[..., tuple[Sequence[Any], Any]]
    scratch: Callable[[int], Any] = _nothing
    finish: Callable[[int, list[Any]], list[Any]] = lambda lanes, results: results


def in_tiles(function: LaneFunction, tiling: Tiling, context: LaneContext, args: Sequence[Any]) -> list[Any]:
    """The results of ``function`` for merged ``args``."""
    count = context.size
    size = tile_lanes(count)
    inner = context._replace(size=size, total=False, tiled=True)
    scratch, places = jax.tree.flatten(tiling.scratch(size))
    moves = [not shared or always for shared, always in zip(context.shared, function.lane_args, strict=True)]
    axes = [axis if m else None for axis, m in zip(function.in_axes, moves, strict=True)]

    def tile(scratch, *args):
        return tiling.run(inner, places.unflatten(scratch), *args)

    def shape_of(x, axis):
        return x if axis is None else jax.ShapeDtypeStruct((*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype)

    traced, (outs, _) = jax.make_jaxpr(tile, return_shape=True)(scratch, *map(shape_of, args, axes))
    # what a tile does not read need not be cut out for it
    jaxpr, read = pe.dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars))
    run = jaxpr_as_fun(ClosedJaxpr(jaxpr, traced.consts))
    given = [(x, axis) for x, axis, use in zip(args, axes, read[len(scratch) :], strict=True) if use]
    out_axes = [out.axis for out in function.outs[: len(outs)]]

    def results(low, scratch):
        part = lambda x, axis: lax.dynamic_slice_in_dim(x, low, size, axis, allow_negative_indices=False)  # noqa: E731
        cut = [x if axis is None else part(x, axis) for x, axis in given]
        kept = [x for x, use in zip(scratch, read[: len(scratch)], strict=True) if use]
        found = run(*kept, *cut)
        return found[: len(outs)], found[len(outs) :]

    def step(i, carry):
        buffers, scratch = carry
        low = jnp.minimum(i * size, count - size)
        new, scratch = results(low, scratch)
        put = lambda b, x, axis: lax.dynamic_update_slice_in_dim(b, x, low, axis, allow_negative_indices=False)  # noqa: E731
        return list(map(put, buffers, new, out_axes)), scratch

    if count == size:
        found, _ = results(0, scratch)
    else:
        whole = [(*x.shape[:axis], count, *x.shape[axis + 1 :]) for x, axis in zip(outs, out_axes, strict=True)]
        buffers = [jnp.zeros(shape, x.dtype) for shape, x in zip(whole, outs, strict=True)]
        found, _ = lax.fori_loop(0, -(-count // size), step, (buffers, scratch))
    return tiling.finish(count, [_total(function, context, i, x) for i, x in enumerate(found)])


def _total(function: LaneFunction, context: LaneContext, i: int, x: Any) -> Any:
    """A cotangent of a shared argument summed over the lanes, if it is to be."""
    out = function.outs[i]
    target = out.cotangent_of
    if target is None or function.lane_args[target] or not context.shared[target] or not context.total:
        return x
    return jnp.sum(x, out.axis)
