"""`check_vjp`: a VJP backend against finite differences of the right-hand side.

For random ``lam`` and, leaf by leaf, random directions v of u, p and t,

    Re <vjp(lam), v>   must equal   d/ds Re <lam, f(x + s v)>   at s = 0,

in JAX's pairing, which does not conjugate. A leaf that fails is searched entry by entry for the worst one.

Where x64 is off or the inputs are of lower precision, f is evaluated in double precision if it accepts that. Cost: at
most 16 evaluations of f for each leaf and draw.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from ..vjp import VJPBackend
from .differences import Leaves, derivative, is_inexact, pairing, random_direction

ENTRIES = 256  # leaves up to this size are searched entry by entry
UNRESOLVED = 1e-2  # finite differences worse than this show nothing


class VJPMismatch(AssertionError):
    """A backend and finite differences disagree; ``report`` is the whole `VJPReport`."""

    def __init__(self, message: str, report: VJPReport):
        super().__init__(message)
        self.report = report


@dataclass(frozen=True)
class LeafCheck:
    """One leaf, at its worst draw. ``got`` and ``expected`` are at ``entry``, or along a random direction if None.

    error: relative; resolution: the relative error of the finite differences themselves.
    """

    name: str
    got: complex | float
    expected: complex | float
    error: float
    tolerance: float
    resolution: float
    ok: bool
    entry: tuple[int, ...] | None = None

    @property
    def place(self) -> str:
        return self.name + (f"[{', '.join(map(str, self.entry))}]" if self.entry else "")


@dataclass(frozen=True)
class VJPReport:
    """What `check_vjp` found, leaf by leaf; true if every leaf agrees."""

    backend: str
    leaves: tuple[LeafCheck, ...]
    draws: int

    @property
    def ok(self) -> bool:
        return all(leaf.ok for leaf in self.leaves)

    def __bool__(self) -> bool:
        return self.ok

    @property
    def first_mismatch(self) -> LeafCheck | None:
        return next((leaf for leaf in self.leaves if not leaf.ok), None)

    def __str__(self) -> str:
        width = max([4, *(len(leaf.place) for leaf in self.leaves)])
        head = f"check_vjp: {self.backend}, {self.draws} draws"
        rows = [f"  {'leaf':{width}}  {'got':>14}  {'expected':>14}  {'rel. error':>10}  {'tolerance':>9}"]
        for leaf in self.leaves:
            rows.append(
                f"  {leaf.place:{width}}  {_number(leaf.got):>14}  {_number(leaf.expected):>14}  {leaf.error:10.1e}  "
                f"{leaf.tolerance:9.1e}  {'ok' if leaf.ok else 'DIFFERS'}"
            )
        return "\n".join([head, *rows])

    __repr__ = __str__


def _number(x: complex | float) -> str:
    return f"{x:.6g}"


def check_vjp(
    f: Callable,
    vjp: VJPBackend,
    u: Any,
    p: Any = None,
    t: Any = 0.0,
    *,
    rtol: float | None = None,
    atol: float = 0.0,
    draws: int = 3,
    seed: int = 0,
    throw: bool = True,
) -> VJPReport:
    """Compare ``vjp``'s ``lam' df/du``, ``lam' df/dp`` and ``lam' df/dt`` at (u, p, t) with finite differences of ``f``.

    f: ``f(u, p, t)`` as in `ODEProblem`. vjp: a backend, anything with ``dress``. u, p, t: the point; ``u`` and ``p`` any
    pytrees, leaves of ``p`` that are not floating point are skipped. Complex leaves are compared in JAX's convention.
    rtol: relative tolerance, 1e-6 in float64 and 1e-3 in float32 by default; atol: absolute. draws: random ``lam``.
    seed: makes the draws the same in every run.

    Returns a `VJPReport`, which prints as a table. Raises `VJPMismatch`, which names the first leaf that differs with
    both numbers, unless ``throw=False``; and TypeError if ``vjp`` is no backend.
    """
    if not hasattr(vjp, "dress") or isinstance(vjp, type):
        raise TypeError(f"check_vjp: vjp must be a VJP backend such as JaxVJP(), with a method dress; got {vjp!r}.")
    if draws < 1:
        raise ValueError(f"check_vjp: draws must be at least 1; got {draws}.")
    typed = is_inexact(t) and hasattr(t, "dtype")
    parts = [Leaves(u, "u"), Leaves(p, "p"), Leaves(t if typed else jnp.asarray(t, _real(u)), "t")]
    names = [name for part in parts for name in part.names]
    values = [x for part in parts for x in part.values]
    dressed = vjp.dress(f)
    out, pull = jax.vjp(_flat(dressed, parts), *values)
    tolerance = rtol if rtol is not None else 1e-6 if _eps([*values, *out]) < 1e-10 else 1e-3
    evaluate = _double(f, parts, values)
    rng = np.random.default_rng(seed)
    worst: dict[int, LeafCheck] = {}
    for _ in range(draws):
        lam = [random_direction(rng, np.ones_like(x)) for x in out]
        bars = pull(tuple(jnp.asarray(a.astype(x.dtype)) for a, x in zip(lam, out, strict=True)))
        for i, bar in enumerate(bars):
            leaf = _check_leaf(evaluate, values, names[i], i, lam, np.asarray(bar), rng, tolerance, atol)
            if i not in worst or (leaf.ok, -_rank(leaf.error)) < (worst[i].ok, -_rank(worst[i].error)):
                worst[i] = leaf
    report = VJPReport(repr(vjp), tuple(worst[i] for i in range(len(values))), draws)
    bad = report.first_mismatch
    if throw and bad is not None:
        raise VJPMismatch(_complaint(vjp, bad, report), report)
    return report


def _complaint(vjp: Any, bad: LeafCheck, report: VJPReport) -> str:
    along = "" if bad.entry is not None else ", along a random direction"
    others = [leaf.name for leaf in report.leaves if not leaf.ok and leaf is not bad]
    more = f" Other leaves that differ: {', '.join(others)}." if others else ""
    if bad.resolution > UNRESOLVED:
        why = " Finite differences do not settle there: f is not smooth, or not finite, near this point."
    else:
        why = f" The relative error is {bad.error:.1e}, the tolerance {bad.tolerance:.1e}."
    return (
        f"{type(vjp).__name__} and finite differences differ at {bad.place}{along}: got {_number(bad.got)}, "
        f"expected {_number(bad.expected)}.{why}{more}"
    )


def _rank(error: float) -> float:
    return np.inf if np.isnan(error) else error


def _real(u: Any) -> np.dtype:
    return np.finfo(np.result_type(*(jnp.result_type(x) for x in jax.tree.leaves(u)))).dtype


def _eps(arrays: list[Any]) -> float:
    return max(float(jnp.finfo(x.dtype).eps) for x in arrays)


def _flat(f: Callable, parts: list[Leaves]) -> Callable:
    """``f`` from the inexact leaves of u, p and t, in a row, to the leaves of its result."""
    ends = np.cumsum([len(part.where) for part in parts])

    def flat(*leaves):
        u, p, t = (
            part.rebuild(leaves[end - len(part.where) : end]) for part, end in zip(parts, ends, strict=True)
        )
        return tuple(jnp.asarray(x) for x in jax.tree.leaves(f(u, p, t)))

    return flat


def _double(f: Callable, parts: list[Leaves], values: list[Any]) -> Callable[[list[Any]], list[np.ndarray]]:
    """Evaluate ``f`` at numpy leaves, in double precision if it accepts that, else in its own."""
    wide = [np.complex128 if np.iscomplexobj(x) else np.float64 for x in values]
    own = [x.dtype for x in values]

    def evaluator(dtypes, x64: bool):
        compiled = jax.jit(_flat(f, parts))

        def evaluate(leaves):
            with jax.enable_x64(True) if x64 else nullcontext():
                arrays = [jnp.asarray(np.asarray(x).astype(d)) for x, d in zip(leaves, dtypes, strict=True)]
                return [np.asarray(x) for x in compiled(*arrays)]

        return evaluate

    if all(a == b for a, b in zip(own, wide, strict=True)):
        return evaluator(own, False)
    try:
        evaluate = evaluator(wide, True)
        if _eps(evaluate(values)) < 1e-10:
            return evaluate
    except Exception:  # f insists on its own precision
        pass
    return evaluator(own, False)


def _check_leaf(evaluate, values, name, i, lam, bar, rng, rtol, atol) -> LeafCheck:
    direction = random_direction(rng, values[i])
    got, expected, error = _along(evaluate, values, i, lam, bar, direction)
    scale = max(abs(got), abs(expected), float(np.linalg.norm(np.ravel(bar * direction))))
    outs = evaluate(values)
    size = sum(float(np.sum(np.abs(a * x))) for a, x in zip(lam, outs, strict=True))
    resolution = error / max(scale, rtol * size, np.finfo(float).tiny)
    difference = abs(got - expected)
    ok = bool(difference <= atol + rtol * scale + 2 * error and resolution <= UNRESOLVED)
    relative = difference / scale if scale > 0 else difference
    if not ok and bar.size <= ENTRIES:
        found = _worst_entry(evaluate, values, i, lam, bar)
        if found is not None:
            got, expected, entry = found
            relative = abs(got - expected) / max(abs(got), abs(expected), np.finfo(float).tiny)
            return LeafCheck(name, got, expected, float(relative), rtol, float(resolution), ok, entry)
    return LeafCheck(name, got, expected, float(relative), rtol, float(resolution), ok)


def _along(evaluate, values, i, lam, bar, direction) -> tuple[float, float, float]:
    """``<bar, v>``, its finite difference, and the error of the latter."""

    def phi(h: float) -> float:
        moved = [np.asarray(x) for x in values]
        if moved[i].dtype.itemsize < direction.dtype.itemsize:
            moved[i] = moved[i].astype(direction.dtype)
        moved[i] = moved[i] + h * direction
        outs = evaluate(moved)
        return sum(pairing(a, x) for a, x in zip(lam, outs, strict=True))

    outs = evaluate(values)
    size = sum(float(np.sum(np.abs(a * x))) for a, x in zip(lam, outs, strict=True))
    estimate = derivative(phi, _eps(outs), size)
    return pairing(bar, direction), estimate.value, estimate.error


def _worst_entry(evaluate, values, i, lam, bar):
    """The entry of leaf ``i`` that is furthest off: its cotangent, what it should be, and where it is."""
    worst, found = -1.0, None
    for entry in np.ndindex(bar.shape):
        size = max(float(np.abs(np.asarray(values[i])[entry])), 1.0)
        unit = np.zeros(bar.shape)
        unit[entry] = size
        got: complex | float = bar[entry].item()
        expected: complex | float = _along(evaluate, values, i, lam, bar, unit)[1] / size
        if np.iscomplexobj(bar):
            expected -= 1j * _along(evaluate, values, i, lam, bar, 1j * unit)[1] / size
        off = _rank(abs(got - expected))
        if off > worst:
            worst, found = off, (got, expected, entry)
    return found
