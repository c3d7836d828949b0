"""What the user's functions return, checked against what they are asked for."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from .params import is_inexact


def _path(path: Any) -> str:
    return jax.tree_util.keystr(path) or "the state"


def check_like(name: str, out: Any, u: Any) -> Any:
    """``out`` in the structure, shapes and dtypes of ``u``; values that JAX would promote silently are refused."""
    if jax.tree.structure(out) != jax.tree.structure(u):
        raise TypeError(
            f"{name} must return the structure of u0.\n  given:    {jax.tree.structure(out)}\n"
            f"  expected: {jax.tree.structure(u)}"
        )
    pairs = zip(jax.tree_util.tree_leaves_with_path(u), jax.tree.leaves(out), strict=True)
    leaves = [_check_leaf(name, path, x, y) for (path, x), y in pairs]
    return jax.tree.unflatten(jax.tree.structure(u), leaves)


def _check_leaf(name: str, path: Any, x: Any, y: Any) -> Any:
    try:
        shape, dtype = jnp.shape(y), jnp.result_type(y)
    except TypeError:
        raise TypeError(f"{name} must return arrays; at {_path(path)} it returned {type(y).__name__}.") from None
    if shape != x.shape:
        raise ValueError(
            f"{name} returned shape {shape} at {_path(path)}; expected {x.shape}, the shape of u0 there."
        )
    weak = isinstance(y, (int, float, complex)) or getattr(jax.typeof(y), "weak_type", False)
    widens = jnp.iscomplexobj(y) and not jnp.iscomplexobj(x)
    if dtype != x.dtype and (not weak or widens):
        raise TypeError(
            f"{name} returned dtype {dtype} at {_path(path)}; expected {x.dtype}, the dtype of u0 there. "
            "Cast the result, or give u0 in the precision that you want."
        )
    return jnp.asarray(y, x.dtype)


def check_params(new: Any, old: Any) -> list[Any]:
    """The inexact leaves of parameters after an event; everything else must be what it was."""
    if jax.tree.structure(new) != jax.tree.structure(old):
        raise TypeError(
            f"affect must return p in the structure it got.\n  given:    {jax.tree.structure(new)}\n"
            f"  expected: {jax.tree.structure(old)}"
        )
    leaves = []
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(old), jax.tree.leaves(new), strict=True):
        dynamic = isinstance(x, jax.Array)
        if dynamic and is_inexact(x):
            leaves.append(_check_leaf("affect (parameters)", path, x, y))
        elif y is not x and not (not dynamic and y == x):
            raise TypeError(
                f"affect changed the parameter at {_path(path)}, which is not floating point. Only floating-point "
                "parameters can be written; keep a mode or counter as a component of u."
            )
    return leaves


def check_cost(value: Any) -> Any:
    if jnp.shape(value) != () or jnp.iscomplexobj(value):
        raise TypeError(f"running_cost must return one real number; got shape {jnp.shape(value)}.")
    return jnp.asarray(value)


def check_bool(value: Any) -> Any:
    if jnp.shape(value) != () or jnp.result_type(value) != jnp.bool_:
        raise TypeError(
            "The condition of a DiscreteCallback must return one boolean; got "
            f"{jnp.result_type(value)} of shape {jnp.shape(value)}. For zero crossings use ContinuousCallback."
        )
    return jnp.reshape(value, (1,))


def check_condition(value: Any) -> Any:
    value = jnp.asarray(value)
    if value.dtype == jnp.bool_ or not jnp.issubdtype(value.dtype, jnp.floating):
        raise TypeError(
            "The condition of a ContinuousCallback must return a real number whose zero is the event; got "
            f"{value.dtype}. For a boolean tested after every step use DiscreteCallback (no gradient of its time)."
        )
    if value.ndim > 1 or value.size == 0:
        raise ValueError(f"A condition must return a number or a vector; got shape {value.shape}.")
    return value
