"""Derivatives along a direction by central differences, extrapolated, with an estimate of their own error.

For steps h, h/4, h/16, ... the central difference ``(phi(h) - phi(-h)) / 2h`` has an error in even powers of h, which
Neville's scheme removes order by order. The entry of the scheme that differs least from its neighbours is taken, and
that difference is its error, with the rounding of phi as a floor. In float64 a smooth function gives 9 to 13 digits; a
noisy one, such as a solve at loose tolerances, as many as its noise allows, and the error says how many.

Cost: two evaluations for each step, at most 16. Source: Ridders, Adv. Eng. Softw. 4 (1982) 75-76.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Sequence

import jax
import jax.numpy as jnp
import numpy as np

LEVELS = 8
RATIO = 4.0


class Estimate(NamedTuple):
    """A derivative and the error that it may have."""

    value: float
    error: float


def derivative(phi: Callable[[float], float], eps: float, size: float, step: float = 2.0**-4) -> Estimate:
    """``phi'(0)``; ``eps`` is the rounding unit of phi, ``size`` the size of the terms that it sums."""
    best = Estimate(np.nan, np.inf)
    above: list[float] = []
    for level in range(LEVELS):
        h = step / RATIO**level
        row = [(phi(h) - phi(-h)) / (2 * h)]
        rounding = eps * size / h
        for k, old in enumerate(above):
            row.append(row[k] + (row[k] - old) / (RATIO ** (2 * (k + 1)) - 1))
            error = max(abs(row[k + 1] - row[k]), abs(row[k + 1] - old), rounding)
            if error < best.error:
                best = Estimate(row[k + 1], error)
        # once rounding rules, smaller steps make it worse
        if level > 1 and np.isfinite(best.error) and abs(row[-1] - above[-1]) > 4 * best.error:
            break
        above = row
    return best


def is_inexact(x: Any) -> bool:
    """Whether a leaf is floating point or complex: an array, or a Python number."""
    if isinstance(x, (bool, int, str, bytes)) or x is None:
        return False
    try:
        return bool(jnp.issubdtype(jnp.result_type(x), jnp.inexact))
    except TypeError:
        return False


class Leaves:
    """The inexact leaves of a tree, by name; the other leaves stay where they are.

    ``name`` stands for the tree in the names of its leaves: ``p['rate']``.
    """

    def __init__(self, tree: Any, name: str):
        paths, self.treedef = jax.tree_util.tree_flatten_with_path(tree)
        self.all = [x for _, x in paths]
        self.where = [i for i, x in enumerate(self.all) if is_inexact(x)]
        self.names = [name + jax.tree_util.keystr(paths[i][0]) for i in self.where]
        self.values = [jnp.asarray(self.all[i]) for i in self.where]

    def rebuild(self, values: Sequence[Any]) -> Any:
        """The tree with its inexact leaves replaced."""
        leaves = list(self.all)
        for i, x in zip(self.where, values, strict=True):
            leaves[i] = x
        return self.treedef.unflatten(leaves)


def random_direction(rng: np.random.Generator, x: Any) -> np.ndarray:
    """Normal numbers of the shape and size of ``x``, complex where it is complex."""
    value = np.asarray(x)
    kind = np.complex128 if np.iscomplexobj(value) else np.float64
    value = value.astype(kind)
    size = float(np.sqrt(np.mean(np.abs(value) ** 2))) if value.size else 0.0
    size = size if np.isfinite(size) and size > 0 else 1.0
    direction = rng.standard_normal(value.shape)
    if kind is np.complex128:
        direction = direction + 1j * rng.standard_normal(value.shape)
    return np.asarray(size * direction, kind)


def pairing(cotangent: Any, tangent: Any) -> float:
    """``Re sum_i c_i v_i``, JAX's pairing of cotangents and tangents (no conjugation)."""
    with np.errstate(invalid="ignore"):  # what is not finite shows in the result
        return float(np.real(np.sum(np.asarray(cotangent, np.complex128) * np.asarray(tangent, np.complex128))))


