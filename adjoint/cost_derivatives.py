"""The user's derivatives of a cost at the saved rows, from functions or arrays to cotangents."""

from __future__ import annotations

from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..solvers.packing import Packing
from ..solvers.solution import Solution
from .params import MOVES, is_inexact, split_params
from .returns import check_like


def cotangents_of_rows(solution: Solution, packing: Packing, p: Any, dgdu: Any, dgdt: Any) -> tuple[Array, Array]:
    """Cotangents of the states ``(T, n)`` and of the times ``(T,)`` of all rows, zero on padding."""
    ts, valid = solution.ts, solution.valid
    by_state = jnp.zeros((len(ts), packing.size), packing.dtype)
    if callable(dgdu):
        by_state = _along_rows(
            "dgdu", lambda u, t, i: packing.pack(check_like("dgdu", dgdu(u, p, t, i), u)), solution
        )
    elif dgdu is not None:
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), solution.us)
        dgdu = _matching("dgdu", dgdu, like, "the rows of the solution")
        by_state = jax.vmap(packing.pack)(dgdu)
    by_time = jnp.zeros_like(ts)
    if callable(dgdt):
        by_time = _along_rows("dgdt", lambda u, t, i: check_like("dgdt", dgdt(u, p, t, i), t), solution)
    elif dgdt is not None:
        by_time = _matching("dgdt", dgdt, ts, "the times of the rows")
    return jnp.where(valid[:, None], by_state, 0), jnp.where(valid, by_time, 0)


def gradient_of_costs(solution: Solution, p: Any, dgdp: Any) -> list[Array] | None:
    """The sum of ``dgdp`` over rows: one array for each floating-point leaf of p; None if it was not given."""
    if dgdp is None:
        return None
    params = split_params(p)
    leaves = iter(params.dynamic)
    wanted = [next(leaves) if s is MOVES else None for s in params.static]
    wanted = [x if x is not None and is_inexact(x) else None for x in wanted]

    def chosen(tree: Any) -> list[Any]:
        """The leaves of ``tree`` where p has floating-point ones."""
        try:
            parts = params.treedef.flatten_up_to(tree)
        except ValueError as error:
            raise TypeError(f"dgdp must have the structure of p, {params.treedef}: {error}") from None
        names = [jax.tree_util.keystr(path) or "p" for path, _ in jax.tree_util.tree_leaves_with_path(p)]
        return [_leaf("dgdp", where, x, w) for where, x, w in zip(names, parts, wanted, strict=True) if w is not None]

    if not callable(dgdp):
        return chosen(dgdp)
    each = _along_rows("dgdp", lambda u, t, i: chosen(dgdp(u, p, t, i)), solution)
    valid = solution.valid
    return [jnp.sum(jnp.where(valid.reshape((-1,) + (1,) * (x.ndim - 1)), x, 0), 0) for x in each]


def _along_rows(name: str, function: Callable, solution: Solution) -> Any:
    try:
        return jax.vmap(function)(solution.us, solution.ts, jnp.arange(len(solution.ts), dtype=np.int32))
    except (jax.errors.TracerIntegerConversionError, jax.errors.TracerArrayConversionError, IndexError) as error:
        error.add_note(f"{name} is mapped over the rows by jax.vmap: make data that it indexes a JAX array, jnp.asarray(data).")
        raise


def _matching(name: str, given: Any, like: Any, what: str) -> Any:
    if jax.tree.structure(given) != jax.tree.structure(like):
        raise TypeError(
            f"{name} must be a function (u, p, t, i), or have the structure of {what}.\n"
            f"  given:    {jax.tree.structure(given)}\n  expected: {jax.tree.structure(like)}"
        )
    pairs = zip(jax.tree_util.tree_leaves_with_path(like), jax.tree.leaves(given), strict=True)
    leaves = [_leaf(name, jax.tree_util.keystr(path) or what, x, w) for (path, w), x in pairs]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _leaf(name: str, where: str, given: Any, like: Any) -> Array:
    try:
        value = jnp.asarray(given)
    except TypeError:
        raise TypeError(f"{name} must hold arrays; at {where} it holds {type(given).__name__}.") from None
    if value.shape != like.shape:
        raise ValueError(f"{name} has shape {value.shape} at {where}; expected {like.shape}.")
    if jnp.iscomplexobj(value) and not jnp.issubdtype(like.dtype, jnp.complexfloating):
        raise TypeError(f"{name} is complex at {where}, where {like.dtype} is expected.")
    return value.astype(like.dtype)
