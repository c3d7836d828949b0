"""Functions of small arrays, computed number by number.

Under `jax.vmap` a state of three numbers becomes an array ``(B, 3)``, and a right-hand side that reads its components and
stacks new ones becomes slices and concatenations along the short axis: XLA makes kernels of them that neither fuse nor
vectorise. A function evaluated here keeps every small array as separate numbers, and turns reading, stacking and small
products into bookkeeping; under `jax.vmap` each number is then one array ``(B,)``. What is large, or has no rule here, is
computed as it stands, on arrays put together for it.

Results are those of the function but for the order of small sums. Derivatives pass through, JAX's own.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any, Callable, NamedTuple, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jexc

STATE = 8  # components of a state that is small
SMALL = 32  # numbers in an array up to which it is kept as such


class Numbers(NamedTuple):
    """A small array: its numbers, and which of them stands where."""

    items: tuple[Any, ...]
    place: np.ndarray

    def at(self, index: tuple[int, ...]) -> Any:
        return self.items[self.place[index]]


def split(x: Any) -> Numbers:
    """The numbers of an array."""
    if isinstance(x, Numbers):
        return x
    place = np.arange(np.size(x)).reshape(np.shape(x))
    if place.ndim == 0:
        return Numbers((x,), place)
    flat = jnp.reshape(x, -1)
    return Numbers(tuple(lax.index_in_dim(flat, i, 0, keepdims=False) for i in range(place.size)), place)


def joined(x: Any, dtype: Any) -> Any:
    """The array of given numbers."""
    if not isinstance(x, Numbers):
        return x
    if x.place.size == 0:
        return jnp.zeros(x.place.shape, dtype)
    return jnp.stack([jnp.asarray(x.items[i], dtype) for i in x.place.ravel()]).reshape(x.place.shape)


def program_of(rhs: Callable, u: Any, theta: Sequence[Any], t: Any) -> Any:
    """``rhs(u, theta, t)`` as a jaxpr of ``(u, t, *theta)``."""
    return jax.make_jaxpr(lambda u, t, *theta: rhs(u, theta, t))(u, t, *theta)


def is_light(program: Any) -> bool:
    """Whether the state of a `program_of` a right-hand side is small and nothing else in it is large."""
    return 0 < size_of(program.jaxpr.invars[0]) <= STATE and not program.effects and _light(program)


def _light(closed: Any) -> bool:
    small = all(np.prod(np.shape(x), dtype=int) <= SMALL for x in closed.consts)
    small = small and all(size_of(v) <= SMALL for v in closed.jaxpr.invars)
    return small and all(map(_light_equation, closed.jaxpr.eqns))


def _light_equation(eqn: Any) -> bool:
    name = eqn.primitive.name
    if name in CALLS:
        return _light(eqn.params[CALLS[name]])
    known = name in ELEMENTWISE or name in PLACES or name in FOLDS or name in WHOLE or name == "dot_general"
    return known and all(size_of(v) <= SMALL for v in (*eqn.invars, *eqn.outvars))


def size_of(v: Any) -> int:
    return math.prod(v.aval.shape)


def by_components(closed: Any, arguments: Sequence[Any]) -> list[Any]:
    """The results of a closed jaxpr; arguments and results are arrays or `Numbers`, those of rank zero arrays."""
    return _evaluate(closed.jaxpr, closed.consts, arguments)


def _evaluate(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))

    def read(v):
        return v.val if isinstance(v, jexc.Literal) else values[v]

    for eqn in jaxpr.eqns:
        values.update(zip(eqn.outvars, _apply(eqn, [read(v) for v in eqn.invars]), strict=True))
    return [read(v) for v in jaxpr.outvars]


def _apply(eqn: Any, inputs: list[Any]) -> list[Any]:
    primitive, params = eqn.primitive, eqn.params
    name = primitive.name
    if name in CALLS and not eqn.effects:
        inner = params[CALLS[name]]
        return _evaluate(inner.jaxpr, inner.consts, inputs)
    shapes = [v.aval.shape for v in (*eqn.invars, *eqn.outvars)]
    known = any(isinstance(x, Numbers) for x in inputs) or not any(v.aval.shape for v in eqn.invars)
    if known and all(0 < np.prod(s, dtype=int) <= SMALL for s in shapes):
        numbers = list(map(split, inputs))
        if name in ELEMENTWISE:
            return [_plain(_elementwise(primitive, params, numbers, eqn.outvars[0].aval.shape))]
        if name in PLACES:
            items, places = _together(numbers)
            out = PLACES[name](*places, **params)
            return [_plain(Numbers(items, x)) for x in (out if isinstance(out, list) else [out])]
        if name in FOLDS:
            return [_plain(_fold(FOLDS[name], numbers[0], **params))]
        if name == "dot_general":
            a, b = numbers
            return [_plain(_dot(a, b, eqn.outvars[0].aval.dtype, **params))]
    return as_it_stands(eqn, [joined(x, v.aval.dtype) for x, v in zip(inputs, eqn.invars, strict=True)])


def as_it_stands(eqn: Any, inputs: list[Any]) -> list[Any]:
    """The results of one equation, by its own primitive."""
    with eqn.ctx.manager:
        out = eqn.primitive.bind(*inputs, **eqn.primitive.get_bind_params(eqn.params))
    return list(out) if eqn.primitive.multiple_results else [out]


def _plain(x: Numbers) -> Any:
    """A single number stands for itself."""
    return x if x.place.ndim else x.at(())


def _together(numbers: list[Numbers]) -> tuple[tuple[Any, ...], list[np.ndarray]]:
    """All items in one list, and places in it."""
    items = tuple(item for x in numbers for item in x.items)
    starts = np.cumsum([0, *(len(x.items) for x in numbers)])
    return items, [x.place + start for x, start in zip(numbers, starts)]


def _table(function: Callable, *places: np.ndarray) -> Numbers:
    """``function`` of every row of places, which are broadcast; once for rows that are the same."""
    known: dict[tuple, int] = {}
    items = []
    rows = np.broadcast_arrays(*places)
    out = np.empty(rows[0].shape, int)
    for index in np.ndindex(*out.shape):
        key = tuple(int(r[index]) for r in rows)
        if key not in known:
            known[key] = len(items)
            items.append(function(*key))
        out[index] = known[key]
    return Numbers(tuple(items), out)


def _elementwise(primitive: Any, params: dict, numbers: list[Numbers], shape: tuple[int, ...]) -> Numbers:
    places = [np.broadcast_to(x.place, shape) for x in numbers]
    return _table(lambda *row: primitive.bind(*(x.items[i] for x, i in zip(numbers, row)), **params), *places)


def _fold(combine: Callable, x: Numbers, *, axes: tuple[int, ...], **_: Any) -> Numbers:
    kept = [d for d in range(x.place.ndim) if d not in axes]
    rows = np.transpose(x.place, (*kept, *axes)).reshape(*(x.place.shape[d] for d in kept), -1)
    columns = np.moveaxis(rows, -1, 0)
    return _table(lambda *row: reduce(combine, [x.items[i] for i in row]), *columns)


def sum_dtype(dtype: Any) -> Any:
    """In what a sum of products is added up, as XLA does: a sum of many terms does not fit into a few digits."""
    short = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4
    return np.dtype(np.float32) if short else dtype


def _dot(a: Numbers, b: Numbers, dtype: Any, *, dimension_numbers, **_: Any) -> Numbers:
    (contract_a, contract_b), (batch_a, batch_b) = dimension_numbers

    def laid_out(x: Numbers, contract, batch, after: int, before: int) -> np.ndarray:
        """Contracted axes first, as one; then batch axes, then room for the other factor's around its own."""
        free = [d for d in range(x.place.ndim) if d not in (*contract, *batch)]
        size = lambda dims: [x.place.shape[d] for d in dims]  # noqa: E731
        moved = np.transpose(x.place, (*contract, *batch, *free))
        return moved.reshape(-1, *size(batch), *[1] * before, *size(free), *[1] * after)

    free_a = a.place.ndim - len(contract_a) - len(batch_a)
    free_b = b.place.ndim - len(contract_b) - len(batch_b)
    left, right = laid_out(a, contract_a, batch_a, free_b, 0), laid_out(b, contract_b, batch_b, 0, free_a)
    count = left.shape[0]

    def product(*row):
        pairs = [(a.items[i], b.items[j]) for i, j in zip(row[:count], row[count:])]
        terms = [lax.mul(*(lax.convert_element_type(x, sum_dtype(dtype)) for x in pair)) for pair in pairs]
        return lax.convert_element_type(reduce(lax.add, terms), dtype)

    return _table(product, *left, *right)


#: primitives that are functions of their arguments' entries, one by one
ELEMENTWISE = frozenset(
    "abs acos acosh add add_any and asin asinh atan atan2 atanh cbrt ceil clamp conj convert_element_type copy copy_p cos "
    "cosh digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt imag integer_pow is_finite le lgamma log log1p logistic "
    "lt max min mul ne neg nextafter not or pow real reduce_precision rem round rsqrt select_n sign sin sinh sqrt square "
    "sub tan tanh xor".split()
)
#: primitives that stand for a jaxpr among their parameters
CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr"}
#: primitives without a rule here that are as good as one on small arrays
WHOLE = frozenset(["custom_jvp_call", "dynamic_slice", "gather", "iota"])
FOLDS = {"reduce_max": lax.max, "reduce_min": lax.min, "reduce_prod": lax.mul, "reduce_sum": lax.add}


def _broadcast(x, *, shape, broadcast_dimensions, **_):
    full = [1] * len(shape)
    for size, dimension in zip(x.shape, broadcast_dimensions, strict=True):
        full[dimension] = size
    return np.broadcast_to(x.reshape(full), shape)


def _slice(x, *, start_indices, limit_indices, strides):
    strides = (1,) * x.ndim if strides is None else strides
    return x[tuple(map(slice, start_indices, limit_indices, strides))]


def _pad(x, value, *, padding_config):
    low, high, inner = (np.array([row[i] for row in padding_config], int) for i in range(3))
    size = np.array(x.shape, int)
    wide = size + np.maximum(size - 1, 0) * inner
    spread = np.full(wide, value)
    spread[tuple(slice(None, None, int(i) + 1) for i in inner)] = x
    kept = spread[tuple(slice(max(0, -int(a)), int(w) - max(0, -int(b))) for a, b, w in zip(low, high, wide))]
    return np.pad(kept, [(max(0, int(a)), max(0, int(b))) for a, b in zip(low, high)], constant_values=value)


#: primitives that move entries about, as functions of the places where they stand
PLACES: dict[str, Callable] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda *xs, dimension: np.concatenate(xs, dimension),
    "expand_dims": lambda x, *, dimensions: np.expand_dims(x, dimensions),
    "pad": _pad,
    "reshape": lambda x, *, new_sizes, **_: x.reshape(new_sizes),
    "rev": lambda x, *, dimensions: np.flip(x, dimensions),
    "slice": _slice,
    "split": lambda x, *, sizes, axis: np.split(x, np.cumsum(sizes)[:-1], axis),
    "squeeze": lambda x, *, dimensions: np.squeeze(x, dimensions),
    "stack": lambda *xs, axis: np.stack(xs, axis),
    "transpose": lambda x, *, permutation: np.transpose(x, permutation),
    "unstack": lambda x, *, axis: list(np.moveaxis(x, axis, 0)),
}
