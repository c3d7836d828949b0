"""Finite differences of f, with its components and their arguments in groups of like size.

In float64 a sum loses what is 1e16 times smaller than its largest term, and a comparison at tolerance rtol loses what is
1/rtol times smaller. In a group no number is more than 1/sqrt(rtol) times larger than another, so that an error of
sqrt(rtol) in the smallest shows.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from .differences import Estimate, Leaves, derivative, pairing, random_direction
from .precision import Units, rounding_units, unit

FINE, FINE_RTOL, COARSE_RTOL = 1e-10, 1e-6, 1e-3  # a rounding unit below FINE is that of float64
STEP = 2.0**-4  # of the differences, and of the move that tells how large the terms of f are

Arrays = list[np.ndarray]


def grouped(sizes: np.ndarray, rtol: float) -> np.ndarray:
    """Labels of numbers of like size; zeros have their own, and so has what is not finite."""
    good = np.isfinite(sizes) & (sizes > 0)
    labels = np.where(sizes == 0, -1, -2)
    if np.any(good):
        span = -0.5 * np.log(np.clip(rtol, 1e-8, 1e-2))
        logs = np.log(np.where(good, sizes, 1.0))
        labels = np.where(good, np.floor((np.max(logs[good]) - logs) / span).astype(int), labels)
    return labels


def flat(f: Callable, parts: list[Leaves]) -> Callable:
    """``f`` from the inexact leaves of u, p and t, in a row, to the leaves of its result."""
    ends = np.cumsum([len(part.where) for part in parts])

    def call(*leaves):
        u, p, t = (
            part.rebuild(leaves[end - len(part.where) : end]) for part, end in zip(parts, ends, strict=True)
        )
        return tuple(jnp.asarray(x) for x in jax.tree.leaves(f(u, p, t)))

    return call


class Differences:
    """Finite differences of ``f`` at ``values``, in double precision if it accepts that, else in its own."""

    def __init__(self, f: Callable, parts: list[Leaves], values: list[Any], rng: np.random.Generator):
        self.values = [np.asarray(x) for x in values]
        self.units = rounding_units(flat(f, parts), values)  # of products, in the precision of the caller
        self.evaluate, self.noise = _evaluator(f, parts, self.values, self.units)
        # how large the terms of each component are; near a zero of f that is seen beside it
        self.sizes = [np.abs(x).astype(float) for x in self.evaluate(self.values)]
        moves = [STEP * random_direction(rng, x) for x in self.values]
        for sign in (1, -1):
            moved = self.evaluate([_moved(x, sign * v) for x, v in zip(self.values, moves, strict=True)])
            seen = [np.where(np.isfinite(x), np.abs(x), 0.0) for x in moved]
            self.sizes = [np.maximum(old, new) for old, new in zip(self.sizes, seen, strict=True)]

    def components(self) -> Iterator[Arrays]:
        """Masks of the components of f that are of like size and depend on each leaf in like precision."""
        kinds = [tuple(sorted((i, x < FINE) for i, x in units.items())) for units in self.units]
        for kind in dict.fromkeys(kinds):
            here = [k for k, other in enumerate(kinds) if other == kind]
            rtol = FINE_RTOL if all(fine for _, fine in kind) else COARSE_RTOL
            labels = grouped(np.concatenate([np.ravel(self.sizes[k]) for k in here]), rtol)
            ends = np.cumsum([self.sizes[k].size for k in here])
            for label in np.unique(labels):
                group = [np.zeros(x.shape, bool) for x in self.sizes]
                for k, part in zip(here, np.split(labels == label, ends[:-1]), strict=True):
                    group[k] = part.reshape(self.sizes[k].shape)
                yield group

    @staticmethod
    def entries(bar: np.ndarray, rtol: float) -> Iterator[np.ndarray]:
        """Masks of the entries of a cotangent that are of like size."""
        labels = grouped(np.abs(bar).astype(float), rtol)
        for label in np.unique(labels) if bar.size else [0]:
            yield labels == label

    def product_unit(self, i: int, lam: Arrays) -> float:
        """The coarsest rounding unit between leaf ``i`` and the components that ``lam`` is on."""
        return _between(self.units, i, lam, self.values[i].dtype)

    def size(self, lam: Arrays) -> float:
        """How large the terms of ``<lam, f>`` are."""
        return sum(float(np.sum(np.abs(a[a != 0]) * x[a != 0])) for a, x in zip(lam, self.sizes, strict=True))

    def along(self, i: int, lam: Arrays, direction: np.ndarray) -> Estimate:
        """The derivative of ``Re <lam, f>`` as leaf ``i`` moves along ``direction``."""

        def phi(h: float) -> float:
            outs = self.evaluate([_moved(x, h * direction) if k == i else x for k, x in enumerate(self.values)])
            return sum(pairing(a[a != 0], x[a != 0]) for a, x in zip(lam, outs, strict=True))

        return derivative(phi, _between(self.noise, i, lam, np.float64), self.size(lam), STEP)


def _between(units: list[Units], i: int, lam: Arrays, dtype: Any) -> float:
    ways = [x.get(i, 0.0) for a, x in zip(lam, units, strict=True) if np.any(a)]
    return max([unit(dtype), *ways])


def _moved(x: np.ndarray, by: np.ndarray) -> np.ndarray:
    return (x.astype(by.dtype) if x.dtype.itemsize < by.dtype.itemsize else x) + by


def _evaluator(f: Callable, parts: list[Leaves], values: Arrays, units: list[Units]) -> tuple[Callable, list[Units]]:
    """``f`` from numpy leaves to numpy leaves, and its `rounding_units` as it is evaluated here."""
    wide = [np.complex128 if np.iscomplexobj(x) else np.float64 for x in values]
    own = [x.dtype for x in values]

    def evaluator(dtypes, x64: bool):
        compiled = jax.jit(flat(f, parts))

        def evaluate(leaves):
            with jax.enable_x64(True) if x64 else nullcontext():
                arrays = [jnp.asarray(np.asarray(x).astype(d)) for x, d in zip(leaves, dtypes, strict=True)]
                return [np.asarray(x) for x in compiled(*arrays)]

        return evaluate

    if all(a == b for a, b in zip(own, wide, strict=True)):
        return evaluator(own, False), units
    try:
        evaluate = evaluator(wide, True)
        if all(unit(x.dtype) < FINE for x in evaluate(values)):
            with jax.enable_x64(True):
                arrays = [jnp.asarray(x.astype(d)) for x, d in zip(values, wide, strict=True)]
                return evaluate, rounding_units(flat(f, parts), arrays)
    except Exception:  # f insists on its own precision
        pass
    return evaluator(own, False), units
