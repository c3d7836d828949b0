"""Operations for which XLA needs a library or its runtime, as loops of operations for which it does not.

`one_kernel` puts them in the place of the originals, where all is small. Results are those of the originals but for the
order of sums. Each function takes an equation of a jaxpr and its inputs.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any, Callable

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .buffers import get_row
from .components import size_of, sum_dtype

MOST = 4096  # numbers in an array that an operation makes
WORK = 2**15  # multiplications in a product
SLICES = 512  # ... that are gathered or scattered, one by one
UNROLLED = 16  # terms of a product that are written out


def small(eqn: Any, most: int = MOST) -> bool:
    """Whether an equation of `LOOPS` is small enough to become a loop, and of a form that can; ``most``: numbers it makes."""
    name, params = eqn.primitive.name, eqn.params
    read, made = (size_of(v) for v in (eqn.invars[0], eqn.outvars[0]))
    if name == "dot_general":
        contracting, _ = params["dimension_numbers"]
        terms = math.prod(eqn.invars[0].aval.shape[d] for d in contracting[0])
        return made <= most and made * terms <= max(WORK, most) and eqn.outvars[0].aval.dtype != np.bool_
    if name in REDUCTIONS:
        return 0 < read <= most and made > 0
    slices, known = math.prod(eqn.invars[1].aval.shape[:-1]), params["mode"] != lax.GatherScatterMode.ONE_HOT
    if name == "gather":
        return known and made <= most and slices <= SLICES
    # an update of one's own has a jaxpr with other operations
    known = known and (name != "scatter" or params["update_jaxpr"] is None)
    return known and size_of(eqn.invars[2]) <= most and slices <= SLICES


def dot_general(eqn: Any, a: Array, b: Array) -> list[Array]:
    """Sums of outer products, one for each contracted index."""
    (contract_a, contract_b), (batch_a, batch_b) = eqn.params["dimension_numbers"]

    def laid_out(x: Array, contract, batch, before: int, after: int) -> Array:
        """Contracted axes first, as one; then batch axes, then room for the other factor's around its own."""
        free = [d for d in range(x.ndim) if d not in (*contract, *batch)]
        size = lambda dims: [x.shape[d] for d in dims]  # noqa: E731
        moved = lax.convert_element_type(lax.transpose(x, (*contract, *batch, *free)), dtype)
        terms = math.prod(size(contract))
        return lax.reshape(moved, (terms, *size(batch), *[1] * before, *size(free), *[1] * after))

    out = eqn.outvars[0].aval
    dtype = sum_dtype(out.dtype)
    free_a, free_b = (x.ndim - len(contract) - len(batch_a) for x, contract in ((a, contract_a), (b, contract_b)))
    left, right = laid_out(a, contract_a, batch_a, 0, free_b), laid_out(b, contract_b, batch_b, free_a, 0)
    count = left.shape[0]
    if count <= UNROLLED:
        return [reduce(lax.add, map(lax.mul, _rows(left), _rows(right)), jnp.zeros(out.shape, dtype)).astype(out.dtype)]

    def add(i, total):
        return lax.add(total, lax.mul(get_row(left, i), get_row(right, i)))

    return [lax.fori_loop(0, count, add, jnp.zeros(out.shape, dtype)).astype(out.dtype)]


def _rows(x: Array) -> list[Array]:
    return [lax.index_in_dim(x, i, keepdims=False) for i in range(x.shape[0])]


REDUCTIONS: dict[str, Callable] = {
    "reduce_and": lax.bitwise_and,
    "reduce_max": lax.max,
    "reduce_min": lax.min,
    "reduce_or": lax.bitwise_or,
    "reduce_prod": lax.mul,
    "reduce_sum": lax.add,
}


def reduction(eqn: Any, x: Array) -> list[Array]:
    """Halves put together until few numbers are left."""
    combine, axes = REDUCTIONS[eqn.primitive.name], eqn.params["axes"]
    kept = [d for d in range(x.ndim) if d not in axes]
    shape = [x.shape[d] for d in kept]
    x = lax.reshape(lax.transpose(x, (*axes, *kept)), (math.prod(x.shape[d] for d in axes), *shape))
    while x.shape[0] > 1:
        half = x.shape[0] // 2
        sums = combine(lax.slice_in_dim(x, 0, half), lax.slice_in_dim(x, half, 2 * half))
        x = lax.concatenate([sums, lax.slice_in_dim(x, 2 * half, None)], 0) if x.shape[0] % 2 else sums
    return [lax.squeeze(x, (0,))]


def gather(eqn: Any, x: Array, indices: Array) -> list[Array]:
    """One slice after another."""
    p, out = eqn.params, eqn.outvars[0].aval
    how, sizes = p["dimension_numbers"], p["slice_sizes"]
    gone = (*how.collapsed_slice_dims, *how.operand_batching_dims)
    at, outer = _starts(x.shape, indices, how.start_index_map, how.operand_batching_dims, how.start_indices_batching_dims)

    def one(_, start):
        place, inside = _clipped(start, x.shape, sizes)
        part = lax.squeeze(lax.dynamic_slice(x, place, sizes, allow_negative_indices=False), gone)
        if p["mode"] == lax.GatherScatterMode.FILL_OR_DROP:
            part = jnp.where(inside, part, _fill(p["fill_value"], out.dtype))
        return None, part

    _, parts = lax.scan(one, None, at)
    parts = parts.reshape(*outer, *parts.shape[1:])
    source = iter(range(len(outer), out.ndim))
    batch = iter(range(len(outer)))
    return [parts.transpose([next(source) if d in how.offset_dims else next(batch) for d in range(out.ndim)])]


def _fill(value: Any, dtype: Any) -> Any:
    """What stands for an entry that does not exist, where the caller named nothing: as `lax.gather` has it."""
    if value is not None:
        return jnp.asarray(value, dtype)
    if jnp.issubdtype(dtype, jnp.inexact):
        return jnp.asarray(np.nan, dtype)
    if jnp.issubdtype(dtype, jnp.signedinteger):
        return jnp.asarray(jnp.iinfo(dtype).min, dtype)
    return jnp.asarray(jnp.iinfo(dtype).max if jnp.issubdtype(dtype, jnp.unsignedinteger) else True, dtype)


SCATTERS: dict[str, Callable] = {
    "scatter": lambda old, new: new,
    "scatter-add": lax.add,
    "scatter-mul": lax.mul,
    "scatter-min": lax.min,
    "scatter-max": lax.max,
    "scatter-sub": lax.sub,
}


def scatter(eqn: Any, x: Array, indices: Array, updates: Array) -> list[Array]:
    """One slice after another, in the order of the updates."""
    p = eqn.params
    how, combine = p["dimension_numbers"], SCATTERS[eqn.primitive.name]
    window = how.update_window_dims
    gone = (*how.inserted_window_dims, *how.operand_batching_dims)
    at, outer = _starts(
        x.shape, indices, how.scatter_dims_to_operand_dims, how.operand_batching_dims, how.scatter_indices_batching_dims
    )
    scattered = [d for d in range(updates.ndim) if d not in window]
    parts = updates.transpose(*scattered, *window)
    parts = parts.reshape(math.prod(outer), *parts.shape[len(outer) :])
    parts = lax.expand_dims(parts, [d + 1 for d in sorted(gone)])
    sizes = parts.shape[1:]

    def one(x, pair):
        start, part = pair
        place, inside = _clipped(start, x.shape, sizes)
        old = lax.dynamic_slice(x, place, sizes, allow_negative_indices=False)
        new = combine(old, part)
        if p["mode"] == lax.GatherScatterMode.FILL_OR_DROP:
            new = jnp.where(inside, new, old)
        return lax.dynamic_update_slice(x, new, place, allow_negative_indices=False), None

    return [lax.scan(one, x, (at, parts))[0]]


def _starts(shape, indices: Array, dims, operand_batching, indices_batching) -> tuple[Array, tuple[int, ...]]:
    """Where every slice starts, ``(N, rank)``, and the axes that N stands for."""
    outer = indices.shape[:-1]
    columns: list[Any] = [jnp.zeros(outer, indices.dtype)] * len(shape)
    for position, d in enumerate(dims):
        columns[d] = lax.index_in_dim(indices, position, indices.ndim - 1, False)
    for d, axis in zip(operand_batching, indices_batching, strict=True):
        columns[d] = lax.broadcasted_iota(indices.dtype, outer, axis)
    return jnp.stack(columns, -1).reshape(-1, len(shape)), outer


def _clipped(start: Array, shape: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[list[Array], Array]:
    """The nearest place for a slice of ``sizes``, and whether it is where it was to start.

    Index by index: an array of bounds would be a constant that XLA moves into the kernel, where a call that was to pass it
    then has an argument that nothing reads.
    """
    most = np.iinfo(start.dtype).max
    given = [lax.index_in_dim(start, d, keepdims=False) for d in range(len(shape))]
    limits = [start.dtype.type(min(a - b, most)) for a, b in zip(shape, sizes, strict=True)]
    nearest = [lax.clamp(start.dtype.type(0), x, limit) for x, limit in zip(given, limits)]
    return nearest, reduce(lax.bitwise_and, map(lax.eq, nearest, given))


LOOPS: dict[str, Callable] = {
    "dot_general": dot_general,
    "gather": gather,
    **dict.fromkeys(REDUCTIONS, reduction),
    **dict.fromkeys(SCATTERS, scatter),
}
