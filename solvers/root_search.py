"""Roots of many functions at once, each in a bracket of its own.

Chandrupatla's method: inverse quadratic interpolation through the last three points where they promise that it converges,
else bisection. About eight evaluations find a simple root that bisection takes fifty for. Source: T. R. Chandrupatla, A new
hybrid quadratic/bisection algorithm for finding the zero of a nonlinear function without using derivatives, Advances in
Engineering Software 28 (1997) 145-149.
"""

from __future__ import annotations

from typing import Callable, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax


class Search(NamedTuple):
    """The newest point, that on the other side of the root, and the one before them, with their values."""

    count: Array  # ()
    x: tuple[Array, ...]  # (3,)
    y: tuple[Array, ...]  # (3,)
    fraction: Array  # where between the first two the next point is


def past_root(function: Callable[[Array], Array], low: Array, high: Array, on: Array) -> Array:
    """A number in ``(low, high]`` at which ``function`` is not negative, next to one at which it is.

    It is taken as negative at ``low``, whatever its value: at the start of a flight that is zero, give or take its rounding.
    Next to: within half a unit in the last place of 1. Arrays of any one shape; entries that are not ``on`` are not waited for.
    """
    real = low.dtype
    tolerance = np.asarray(0.5 * np.finfo(real).eps, real)
    most = 3 * (np.finfo(real).nmant + 4)  # bisection needs a third of them

    def open_(s: Search) -> Array:
        return on & (jnp.abs(s.x[1] - s.x[0]) > tolerance)

    def narrow(s: Search) -> Search:
        (a, b, _), (fa, fb, _) = s.x, s.y
        x = a + s.fraction * (b - a)
        f = function(x)
        same = (f < 0) == (fa < 0)
        b, c, fb, fc = (jnp.where(same, *pair) for pair in ((b, a), (a, b), (fb, fa), (fa, fb)))
        # inverse quadratic interpolation, if it is monotonic there
        xi, phi = (x - b) / (c - b), (f - fb) / (fc - fb)
        smooth = (phi**2 < xi) & ((1 - phi) ** 2 < 1 - xi)
        guess = f / (fb - f) * fc / (fb - fc) + (c - x) / (b - x) * f / (fc - f) * fb / (fc - fb)
        least = jnp.minimum(tolerance / jnp.abs(b - x), 0.5)
        fraction = jnp.where(smooth & jnp.isfinite(guess), jnp.clip(guess, least, 1 - least), 0.5)
        # what is closed stays as it is
        keep = lambda new, old: jnp.where(open_(s), new, old)  # noqa: E731
        points, values = (tuple(map(keep, new, old)) for new, old in (((x, b, c), s.x), ((f, fb, fc), s.y)))
        return Search(s.count + 1, points, values, keep(fraction.astype(real), s.fraction))

    above = function(high)
    below = -jnp.maximum(jnp.abs(above), np.finfo(real).tiny)
    start = Search(jnp.zeros((), np.int32), (low, high, low), (below, above, below), jnp.full_like(low, 0.5))
    end = lax.while_loop(lambda s: jnp.any(open_(s)) & (s.count < most), narrow, start)
    return jnp.where(end.y[0] < 0, end.x[1], end.x[0])
