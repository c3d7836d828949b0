"""Calling a user's NumPy functions so that no buffer is ever shared.

Every call gets fresh read-only copies of its inputs, in the user's own pytrees, and a fresh ``du`` to write into; what
comes back is copied at once. Whatever the user's code keeps, returns or overwrites later is then its own.

``du`` is filled with a NaN of a known bit pattern: an entry that still holds it was not written, and is named. A NaN that
the right-hand side computed has another pattern, and is left to the solver.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Sequence

import jax
import numpy as np

from ..params import Params

#: quiet NaNs that no arithmetic produces by itself
_UNWRITTEN = {np.dtype(np.float64): np.uint64(0x7FF8DEADBEEF0001), np.dtype(np.float32): np.uint32(0x7FC0DEAD)}


class HostFunctions:
    """The functions of a `HostVJP` over lists of leaves. Where it is batched, leaves of u, t and lam have points in front."""

    def __init__(self, host: Any, u_tree: Any, params: Params):
        self.host, self.u_tree, self.params = host, u_tree, params

    # -- the right-hand side

    def rhs(self, u: Sequence[np.ndarray], p: Sequence[np.ndarray], t: np.ndarray) -> list[np.ndarray]:
        if not self.host.in_place:
            out = self._call("rhs", self.host.rhs, dict(u=u, p=p, t=t))
            return self._like_u("rhs", out, u, "with in_place=False it must return du")
        blank = [_unwritten_like(x) for x in u]
        du = self.u_tree.unflatten(blank)
        out = self._call("rhs", lambda *x: self.host.rhs(du, *x), dict(u=u, p=p, t=t))
        if out is not None and out is not du:
            raise TypeError(
                f"HostVJP: rhs returned {type(out).__name__} although in_place=True. Write into du and return nothing, "
                "or say in_place=False."
            )
        leaves = self._like_u("du", du, u, "write into the arrays of du")
        for i, x in enumerate(leaves):
            missing = _not_written(x)
            if missing is not None:
                raise ValueError(_missing_message("du" + self._u_paths[i], x.shape, missing))
        return leaves

    # -- its products

    def product(self, name: str, lam, u, p, t) -> list[Any]:
        """What ``vjp_u`` (leaves of u), ``vjp_p`` (dynamic leaves of p) or ``vjp_t`` (one number) gives."""
        out = self._call(name, getattr(self.host, name), dict(lam=lam, u=u, p=p, t=t))
        if name == "vjp_u":
            return self._like_u(name, out, u, "return the cotangent of u")
        return self._like_p(name, out, p) if name == "vjp_p" else [_array(name, out, np.shape(t), t.dtype)]

    def products(self, lam, u, p, t) -> tuple[list[np.ndarray], list[Any]]:
        """What ``vjp`` gives: (leaves of u, dynamic leaves of p)."""
        out = self._call("vjp", self.host.vjp, dict(lam=lam, u=u, p=p, t=t))
        if not (isinstance(out, tuple) and len(out) == 2):
            raise TypeError(f"HostVJP: vjp must return the pair (u part, p part); got {type(out).__name__}.")
        return self._like_u("the u part of vjp", out[0], u, ""), self._like_p("the p part of vjp", out[1], p)

    # -- calling

    def _call(self, name: str, function: Callable, inputs: dict[str, Any]) -> Any:
        try:
            return function(*self._arguments(inputs, frozen=True).values())
        except ValueError as error:
            if "read-only" not in str(error):
                raise
            written = self._written(function, inputs)
            if not written:
                raise
            raise ValueError(
                f"HostVJP: {name} wrote to its input {', '.join(written)}. Inputs are read-only: copy before you change "
                "one (u = u.copy())."
            ) from error

    def _arguments(self, inputs: dict[str, Any], frozen: bool) -> dict[str, Any]:
        def copy(x):
            x = np.array(x)
            x.flags.writeable = not frozen
            return x

        def tree(name, leaves):
            if name == "t":
                return leaves[()] if leaves.ndim == 0 else copy(leaves)
            copies = [copy(x) for x in leaves]
            return self.params.rebuild(copies) if name == "p" else self.u_tree.unflatten(copies)

        return {name: tree(name, leaves) for name, leaves in inputs.items()}

    def _written(self, function: Callable, inputs: dict[str, Any]) -> list[str]:
        """Which inputs the function changes, found by letting it change copies."""
        arguments = self._arguments(inputs, frozen=False)
        before = [x for name in inputs for x in jax.tree.leaves(self._arguments(inputs, frozen=True)[name])]
        named = [(n + k, x) for n, v in arguments.items() for k, x in zip(_paths(v), jax.tree.leaves(v), strict=True)]
        try:
            function(*arguments.values())
        except Exception:  # the first error is the one to tell
            pass
        same = [isinstance(x, np.ndarray) and x.tobytes() != y.tobytes() for (_, x), y in zip(named, before, strict=True)]
        return [name for (name, _), changed in zip(named, same, strict=True) if changed]

    # -- what comes back

    @functools.cached_property
    def _u_paths(self) -> list[str]:
        return _paths(self.u_tree.unflatten(range(self.u_tree.num_leaves)))

    @functools.cached_property
    def _p_paths(self) -> list[str]:
        return self.params.dynamic_of(_paths(self.params.treedef.unflatten(self.params.static)))

    def _like_u(self, name: str, out: Any, u: Sequence[np.ndarray], advice: str) -> list[np.ndarray]:
        leaves = _flatten_up_to(self.u_tree, name, out, "u", advice)
        return [_array(name + k, x, y.shape, y.dtype) for k, x, y in zip(self._u_paths, leaves, u, strict=True)]

    def _like_p(self, name: str, out: Any, p: Sequence[np.ndarray]) -> list[Any]:
        leaves = self.params.dynamic_of(_flatten_up_to(self.params.treedef, name, out, "p", "return the cotangent of p"))
        return [
            _array(name + k, x, y.shape, y.dtype) if y.dtype.kind in "fcV" else None
            for k, x, y in zip(self._p_paths, leaves, p, strict=True)
        ]


def _paths(tree: Any) -> list[str]:
    return [jax.tree_util.keystr(k) for k, _ in jax.tree_util.tree_leaves_with_path(tree)]


def _flatten_up_to(tree: Any, name: str, out: Any, like: str, advice: str) -> list[Any]:
    advice = f"; {advice}" if advice else ""
    if out is None and tree.num_leaves:
        raise TypeError(f"HostVJP: {name} returned None; expected the structure of {like}{advice}.")
    try:
        return tree.flatten_up_to(out)
    except (ValueError, TypeError) as error:
        raise TypeError(
            f"HostVJP: {name} must have the structure of {like}{advice}.\n  given:    {jax.tree.structure(out)}\n"
            f"  expected: {tree}"
        ) from error


def _array(name: str, x: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A copy of ``x`` of exactly this shape and dtype; Python numbers take the dtype."""
    if type(x) is np.ndarray and x.shape == shape and x.dtype == dtype:
        return x.copy()
    if x is None or (not isinstance(x, np.ndarray) and np.asarray(x).dtype == object):
        raise TypeError(f"HostVJP: {name} is {type(x).__name__}; expected an array of shape {shape} and {dtype}.")
    y = np.asarray(x)
    if y.shape != shape:
        raise ValueError(f"HostVJP: {name} has shape {y.shape}; expected {shape}.")
    number = isinstance(x, (int, float)) or (isinstance(x, complex) and dtype.kind == "c")
    if y.dtype != dtype and not number:
        raise TypeError(f"HostVJP: {name} has dtype {y.dtype}; expected {dtype}. Cast it (x.astype(u.dtype)).")
    return np.array(y, dtype)


def _unwritten_like(x: np.ndarray) -> np.ndarray:
    pattern = _UNWRITTEN.get(np.real(x).dtype)
    if pattern is None:
        return np.full(x.shape, np.nan, x.dtype)
    words = np.full(x.size * (x.dtype.itemsize // pattern.itemsize), pattern)
    return words.view(x.dtype).reshape(x.shape)


def _not_written(x: np.ndarray) -> np.ndarray | None:
    """Flat positions that still hold the pattern, or None."""
    if not np.isnan(x).any():
        return None
    pattern = _UNWRITTEN.get(np.real(x).dtype)
    if pattern is None:
        return None
    words = np.ascontiguousarray(x).reshape(-1).view(pattern.dtype).reshape(x.size, -1)
    missing = np.flatnonzero(np.any(words == pattern, 1))
    return missing if missing.size else None


def _missing_message(name: str, shape: tuple[int, ...], missing: np.ndarray) -> str:
    where = [f"{name}[{', '.join(map(str, np.unravel_index(i, shape)))}]" if shape else name for i in missing[:4]]
    return (
        f"HostVJP: rhs did not write {', '.join(where)}{', ...' if missing.size > 4 else ''}. With in_place=True it must "
        "assign every entry of du (du[...] = 0 first, to accumulate)."
    )
