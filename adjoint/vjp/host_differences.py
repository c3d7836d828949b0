"""Central differences of a NumPy right-hand side, where no hand-written product is given.

    (lam' df/dx)_j ~ lam' (f(x + h_j e_j) - f(x - h_j e_j)) / 2 h_j,      h_j = eps^(1/3) max(1, |x_j|)

With a sparsity pattern of df/du the columns of one colour share two evaluations. Error about eps^(2/3) of f over the
scale of x, 4e-11 in float64. Cost: two evaluations for each colour (each component without a pattern), each entry of p
and t; twice that for complex entries. Complex cotangents follow JAX: of x + iy, d/dx - i d/dy of ``Re(lam' f)``.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, Sequence

import numpy as np

from .colouring import colour

RHS = Callable[[Sequence[np.ndarray], Sequence[np.ndarray], np.ndarray], list[np.ndarray]]


def step_of(x: np.ndarray) -> np.ndarray:
    """The step at every entry, rounded so that ``x + h`` and ``x - h`` are exact to the last digit that matters."""
    eps = np.finfo(x.dtype).eps
    h = np.cbrt(eps) * np.maximum(1.0, np.abs(x))
    return (2.0 ** np.round(np.log2(h))).astype(np.finfo(x.dtype).dtype)


def state_part(rhs: RHS, lam, u, p, t, pattern: np.ndarray | None, batched: bool) -> list[np.ndarray]:
    """``lam' df/du``, leaves of u."""
    sizes = [x[0].size if batched else x.size for x in u]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    n = int(starts[-1])
    lead = (u[0].shape[0],) if batched else ()
    groups = [np.array([j]) for j in range(n)] if pattern is None else colour(pattern)
    bar = np.zeros((*lead, n), complex)
    for group in groups:
        for unit in _units(u):
            plus, minus = [np.array(x, order="C") for x in u], [np.array(x, order="C") for x in u]
            width = np.ones((*lead, n))
            for leaf, start, size, x, y in zip(u, starts, sizes, plus, minus, strict=False):
                inside = group[(group >= start) & (group < start + size)] - start
                if not inside.size or (unit != 1 and leaf.dtype.kind != "c"):
                    continue
                flat = leaf.reshape(*lead, size)[..., inside]
                h = step_of(flat)
                x.reshape(*lead, size)[..., inside] += (unit * h).astype(leaf.dtype)
                y.reshape(*lead, size)[..., inside] -= (unit * h).astype(leaf.dtype)
                width[..., start + inside] = 2 * h
            difference = _weighted(lam, rhs(plus, p, t), rhs(minus, p, t), lead)
            for j in group:
                leaf = u[int(np.searchsorted(starts, j, "right")) - 1]
                if unit != 1 and leaf.dtype.kind != "c":
                    continue
                rows = difference if pattern is None else difference[..., pattern[:, j]]
                bar[..., j] += np.conj(unit) * rows.sum(-1) / width[..., j]
    parts = [bar[..., a : a + k].reshape(x.shape) for a, k, x in zip(starts, sizes, u, strict=False)]
    return [_cast(part, x) for part, x in zip(parts, u, strict=True)]


def parameter_part(rhs: RHS, lam, u, p, t, wanted: Sequence[int]) -> list[Any]:
    """``lam' df/dp``, summed over points, for the dynamic leaves of p that are ``wanted``."""
    bars: list[Any] = [None] * len(p)
    for i in wanted:
        bar = np.zeros(p[i].shape, complex)
        for at in np.ndindex(p[i].shape):
            h = step_of(p[i][at])
            for unit in _units([p[i]]):
                low, high = ([np.array(x) for x in p] for _ in range(2))
                high[i][at] += p[i].dtype.type(unit * h)
                low[i][at] -= p[i].dtype.type(unit * h)
                total = _weighted(lam, rhs(u, high, t), rhs(u, low, t), ()).sum()
                bar[at] += np.conj(unit) * total / (2 * h)
        bars[i] = _cast(bar, p[i])
    return bars


def time_part(rhs: RHS, lam, u, p, t: np.ndarray, batched: bool) -> np.ndarray:
    """``lam' df/dt``, one number for each point."""
    h = step_of(t)
    total = _weighted(lam, rhs(u, p, t + h), rhs(u, p, t - h), t.shape).sum(-1)
    return (total / (2 * h)).astype(t.dtype).reshape(t.shape)


def _units(leaves: Sequence[np.ndarray]) -> Iterator[complex]:
    yield 1
    if any(x.dtype.kind == "c" for x in leaves):
        yield 1j


def _weighted(lam, high, low, lead: tuple[int, ...]) -> np.ndarray:
    """``Re(lam (high - low))`` laid flat, points in front."""
    flat = [(a * (b - c)).real.astype(float).reshape(*lead, -1) for a, b, c in zip(lam, high, low, strict=True)]
    return np.concatenate(flat, -1)


def _cast(bar: np.ndarray, like: np.ndarray) -> np.ndarray:
    return (bar if like.dtype.kind == "c" else np.real(bar)).astype(like.dtype)
