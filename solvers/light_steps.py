"""Runge-Kutta steps of a light system, number by number (see `components`)."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np
from jax import Array, lax

from .components import Numbers, by_components, split
from .runge_kutta import combine
from .system import System
from .tableau import Tableau

Parts = tuple[Array, ...]  # the components of a state


def parts_of(x: Array) -> Parts:
    """The columns of ``x (B, n)``."""
    return tuple(x[:, j] for j in range(x.shape[1]))


def light_rhs(system: System, u: Parts, theta: Sequence[Any], t: Array) -> Parts:
    """The right-hand side on one lane; ``theta`` may hold `Numbers`."""
    (out,) = by_components(system.light, [Numbers(tuple(u), np.arange(len(u))), t, *theta])
    return tuple(split(out).at((j,)) for j in range(len(u)))


def light_stages(system: System, theta: Sequence[Any], t: Array, h: Array, u: Parts, k0: Parts) -> tuple[Parts, list[Parts]]:
    """The end of one step and its slopes, on one lane."""
    tableau: Tableau = system.tableau
    slopes, x = [k0], u
    for q in range(1, tableau.stages + 1):
        x = tuple(u_ + h * combine(tableau.a[q, :q], list(k)) for u_, k in zip(u, zip(*slopes)))
        x = lax.optimization_barrier(x)
        slopes.append(light_rhs(system, x, theta, t + h * np.asarray(tableau.c[q], t.dtype)))
    return x, slopes
