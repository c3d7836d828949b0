"""`check_vjp`: a VJP backend against finite differences of the right-hand side.

For random ``lam`` and, leaf by leaf, random directions v of u, p and t,

    Re <vjp(lam), v>   must equal   d/ds Re <lam, f(x + s v)>   at s = 0,

in JAX's pairing, which does not conjugate. A leaf that fails is searched entry by entry for the worst one.

Numbers of very different size would hide one another: in the sum that a pairing is, and in the rounding of f. So ``lam``
keeps to components of f of like size, and v to entries of like cotangent, one group after another (`groups`). A leaf's
tolerance is that of the precision its product passes through on the way from those components (`precision`).

Where x64 is off or the inputs are of lower precision, f is evaluated in double precision if it accepts that. Cost: at
most 16 evaluations of f for each leaf, draw and pair of groups; most often there is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from ..vjp import VJPBackend
from .differences import Leaves, is_inexact, pairing, random_direction
from .groups import COARSE_RTOL, FINE, FINE_RTOL, Differences, flat

ENTRIES = 256  # leaves up to this size are searched entry by entry
UNRESOLVED = 1e-2  # finite differences worse than this show nothing
LEAST_RTOL = 1e-9  # no differences resolve more
ROUNDING = 4  # units in which the terms of a product may be off


class VJPMismatch(AssertionError):
    """A backend and finite differences disagree; ``report`` is the whole `VJPReport`."""

    def __init__(self, message: str, report: VJPReport):
        super().__init__(message)
        self.report = report


@dataclass(frozen=True)
class LeafCheck:
    """One leaf, at its worst draw. ``got`` and ``expected`` are at ``entry``, or along a random direction if None.

    error: relative; resolution: the relative error of the finite differences themselves; tolerance: relative, of this
    leaf.
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
    rtol: relative tolerance; by default that of each leaf: 1e-6 where it and all that depends on it in f is float64,
    else 1e-3. atol: absolute. draws: random ``lam``. seed: makes the draws the same in every run.

    Returns a `VJPReport`, which prints as a table. Raises `VJPMismatch`, which names the first leaf that differs with
    both numbers, unless ``throw=False``; and TypeError if ``vjp`` is no backend.

    Entries and components of any size are compared, each beside its like. What stays out of reach is a term that rounding
    swallows in the very component of f where it stands: ``1e8 * p[0] + 1e-9 * p[1]``.
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
    out, pull = jax.vjp(flat(dressed, parts), *values)
    rng = np.random.default_rng(seed)
    found = Differences(f, parts, values, rng)
    worst: dict[int, LeafCheck] = {}
    ranks: dict[int, tuple[bool, float]] = {}
    for _ in range(draws):
        draw = [random_direction(rng, np.ones_like(x)) for x in out]
        for group in found.components():
            lam = [np.where(on, a, 0) for on, a in zip(group, draw, strict=True)]
            bars = pull(tuple(jnp.asarray(a.astype(x.dtype)) for a, x in zip(lam, out, strict=True)))
            for i, bar in enumerate(map(np.asarray, bars)):
                own = FINE_RTOL if found.product_unit(i, lam) < FINE else COARSE_RTOL
                tolerance = own if rtol is None else rtol
                for on in found.entries(bar, tolerance):
                    leaf, excess = _check_leaf(found, names[i], i, lam, bar, on, rng, tolerance, atol)
                    rank = (not leaf.ok, excess)
                    if i not in worst or rank > ranks[i]:
                        worst[i], ranks[i] = leaf, rank
    report = VJPReport(repr(vjp), tuple(worst[i] for i in sorted(worst)), draws)
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


def _check_leaf(found: Differences, name, i, lam, bar, on, rng, rtol, atol) -> tuple[LeafCheck, float]:
    """The entries ``on`` of leaf ``i``, and their difference in units of the one that is allowed."""
    direction = np.where(on, random_direction(rng, found.values[i]), 0)
    got, estimate = pairing(bar[on], direction[on]), found.along(i, lam, direction)
    expected, error = estimate.value, estimate.error
    scale = max(abs(got), abs(expected), float(np.linalg.norm(bar[on] * direction[on])))
    size, tiny = found.size(lam), float(np.finfo(float).tiny)
    resolution = error / max(scale, max(rtol, LEAST_RTOL) * size, tiny)
    # a product is as good as the rounding of its terms, however small it is itself
    noise = 2 * error + ROUNDING * found.product_unit(i, lam) * size
    difference = abs(got - expected)
    allowed = atol + rtol * scale + noise
    ok = bool(difference <= allowed and resolution <= UNRESOLVED)
    excess = _rank(difference / max(allowed, tiny))
    relative = difference / max(scale, noise / max(rtol, LEAST_RTOL), tiny)
    entry = None
    if not ok and bar.size <= ENTRIES:
        got, expected, entry = _worst_entry(found, i, lam, bar, on)
        relative = abs(got - expected) / max(abs(got), abs(expected), tiny)
    return LeafCheck(name, got, expected, float(relative), rtol, float(resolution), ok, entry), excess


def _worst_entry(found: Differences, i: int, lam, bar, on) -> tuple[complex | float, complex | float, Any]:
    """The entry of leaf ``i``, among those ``on``, that is furthest off: its cotangent, what it should be, where it is."""
    worst = -1.0
    furthest: tuple[complex | float, complex | float, Any] = (0.0, 0.0, None)
    for entry in (place for place in np.ndindex(bar.shape) if on[place]):
        step = max(float(np.abs(found.values[i][entry])), 1.0)
        one = np.zeros(bar.shape)
        one[entry] = step
        got: complex | float = bar[entry].item()
        expected: complex | float = found.along(i, lam, one).value / step
        if np.iscomplexobj(bar):
            expected -= 1j * found.along(i, lam, 1j * one).value / step
        off = _rank(abs(got - expected))
        if off > worst:
            worst, furthest = off, (got, expected, entry)
    return furthest
