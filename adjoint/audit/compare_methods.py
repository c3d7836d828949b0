"""`check_gradients`: every sensitivity method beside the others, and beside finite differences of the loss.

Two errors are told for each method. Against finite differences: along random directions v, ``Re <grad, v>`` against
``d/ds loss(p + s v)``, relative to the largest of these derivatives. Against the other methods: the largest difference
of an entry from the median of all methods' gradients, relative to the largest entry; one method that is wrong stands out
alone, where pairwise differences would accuse all.

The finite differences are only as good as the loss is smooth: a loss through an adaptive solve is smooth to about its
tolerance. Their own error is part of the report.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from ..backsolve import BacksolveAdjoint
from ..direct import DirectAdjoint
from ..discrete import DiscreteAdjoint
from ..forward_sensitivity import ForwardSensitivity
from ..gauss import GaussAdjoint
from ..interpolating import InterpolatingAdjoint
from ..quadrature import QuadratureAdjoint
from ..sensealg import SensitivityMethod
from .differences import Leaves, derivative, pairing, random_direction
from .plot import error_against_time

METHODS = (
    DiscreteAdjoint(),
    GaussAdjoint(),
    QuadratureAdjoint(),
    InterpolatingAdjoint(),
    BacksolveAdjoint(),
    ForwardSensitivity(),
    DirectAdjoint(),
)


@dataclass(frozen=True)
class MethodCheck:
    """One method. Errors are relative; times in seconds; memory in bytes, None where the compiler does not tell.

    gradient: in the structure of p, None on leaves that are not floating point. failure: what it raised, or None.
    """

    name: str
    error: float
    disagreement: float
    seconds: float
    compile_seconds: float
    memory: int | None
    gradient: Any = None
    failure: str | None = None


@dataclass(frozen=True)
class GradientsReport:
    """What `check_gradients` found. ``resolution``: the relative error of the finite differences themselves."""

    rows: tuple[MethodCheck, ...]
    loss: float
    resolution: float

    def __getitem__(self, name: str) -> MethodCheck:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"no method {name!r} in this report; there are {', '.join(r.name for r in self.rows)}.")

    def __str__(self) -> str:
        width = max(6, *(len(row.name) for row in self.rows))
        lines = [
            f"check_gradients: loss {self.loss:.8g}; finite differences are good to {self.resolution:.1e}",
            f"  {'method':{width}}  {'vs differences':>14}  {'vs methods':>10}  {'gradient':>10}  {'compile':>8}"
            f"  {'memory':>9}",
        ]
        for r in self.rows:
            if r.failure is not None:
                lines.append(f"  {r.name:{width}}  failed: {r.failure}")
                continue
            lines.append(
                f"  {r.name:{width}}  {r.error:14.1e}  {r.disagreement:10.1e}  {1e3 * r.seconds:7.3f} ms  "
                f"{r.compile_seconds:6.2f} s  {_bytes(r.memory):>9}"
            )
        return "\n".join(lines)

    __repr__ = __str__

    def plot(self, path: str | os.PathLike) -> Any:
        """Draw error against time into a file, a point for each method; needs the extra ``plot``."""
        points = [(r.name, r.seconds, r.error) for r in self.rows if r.failure is None]
        return error_against_time(points, self.resolution, path)


def _bytes(size: int | None) -> str:
    if size is None:
        return "unknown"
    return f"{size / 1024:.1f} kB" if size < 2**20 else f"{size / 2**20:.1f} MB"


def check_gradients(
    loss: Callable[[Any, SensitivityMethod], Any],
    p: Any,
    sensealgs: Mapping[str, SensitivityMethod] | Iterable[SensitivityMethod] | None = None,
    *,
    directions: int = 3,
    repeats: int = 5,
    seed: int = 0,
    verbose: bool = True,
) -> GradientsReport:
    """Compare gradients of ``loss(p, sensealg)`` by several methods, and print them as a table.

    loss: returns one real number; hands ``sensealg`` to `solve`. p: any pytree; its inexact leaves are differentiated.
    sensealgs: methods, or a mapping from names to methods; by default one of each class. directions: random directions
    for the finite differences. repeats: the time of a gradient is the median of so many. seed: fixes the directions.
    verbose=False does not print.

    Returns a `GradientsReport`: errors, times, memory and the gradients as data, and ``report.plot(path)``. A method
    that raises gets a row that says what it raised. Memory is what the compiled gradient allocates beside its inputs and
    outputs. Cost: one compilation for each method and one for the loss.
    """
    methods = _named(METHODS if sensealgs is None else sensealgs)
    leaves = Leaves(p, "p")
    if not leaves.values:
        raise ValueError("check_gradients: p has no floating-point leaf; there is nothing to differentiate.")
    if directions < 1 or repeats < 1:
        raise ValueError(f"check_gradients: directions and repeats must be at least 1; got {directions} and {repeats}.")
    rng = np.random.default_rng(seed)
    ways = [[random_direction(rng, x) for x in leaves.values] for _ in range(directions)]
    value, slopes, errors = _differences(loss, next(iter(methods.values())), leaves, ways)
    scale = max(float(np.max(np.abs(slopes))), float(np.finfo(float).tiny))
    runs = {name: _run(loss, method, leaves, repeats) for name, method in methods.items()}
    good = {name: run[0] for name, run in runs.items() if run[0] is not None}
    rows = []
    for name, (gradient, seconds, compiling, memory, failure) in runs.items():
        if gradient is None:
            rows.append(MethodCheck(name, np.nan, np.nan, seconds, compiling, memory, None, failure))
            continue
        got = [sum(pairing(g, v) for g, v in zip(gradient, way, strict=True)) for way in ways]
        error = float(np.max(np.abs(np.array(got) - slopes)) / scale)
        tree = leaves.treedef.unflatten(_spread(leaves, gradient))
        rows.append(MethodCheck(name, error, _disagreement(good, name), seconds, compiling, memory, tree))
    report = GradientsReport(tuple(rows), value, float(np.max(errors)) / scale)
    if verbose:
        print(report)
    return report


def _named(sensealgs: Any) -> dict[str, SensitivityMethod]:
    items = sensealgs.items() if isinstance(sensealgs, Mapping) else ((None, m) for m in sensealgs)
    named: dict[str, SensitivityMethod] = {}
    for name, method in items:
        if not isinstance(method, SensitivityMethod):
            raise TypeError(
                "check_gradients: sensealgs must hold sensitivity methods such as DiscreteAdjoint(); "
                f"got {method!r}."
            )
        name = type(method).__name__ if name is None else str(name)
        named[name if name not in named else repr(method)] = method
    if not named:
        raise ValueError("check_gradients: sensealgs is empty.")
    return named


def _differences(loss, method, leaves: Leaves, ways) -> tuple[float, np.ndarray, np.ndarray]:
    """The loss, and its derivatives along the directions with their errors."""
    run = jax.jit(lambda values: loss(leaves.rebuild(values), method))
    start = [np.asarray(x) for x in leaves.values]

    def at(values) -> float:
        return float(run([jnp.asarray(x.astype(y.dtype)) for x, y in zip(values, start, strict=True)]))

    out = jax.eval_shape(run, leaves.values)
    if getattr(out, "shape", None) != () or not jnp.issubdtype(out.dtype, jnp.floating):
        raise TypeError(f"check_gradients: loss must return one real number; got {out}.")
    value, eps = at(start), float(jnp.finfo(out.dtype).eps)
    found = [
        derivative(lambda h, way=way: at([x + h * v for x, v in zip(start, way, strict=True)]), eps, abs(value))
        for way in ways
    ]
    return value, np.array([e.value for e in found]), np.array([e.error for e in found])


def _run(loss, method, leaves: Leaves, repeats: int):
    """The gradient by one method, its time, compile time and memory; or what it raised."""
    gradient = jax.jit(jax.grad(lambda values: loss(leaves.rebuild(values), method)))
    began = time.perf_counter()
    try:
        compiled = gradient.lower(leaves.values).compile()
        compiling = time.perf_counter() - began
        result = jax.block_until_ready(compiled(leaves.values))
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        return None, np.nan, time.perf_counter() - began, None, f"{type(error).__name__}: {reason}"
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(compiled(leaves.values))
        times.append(time.perf_counter() - began)
    analysis = compiled.memory_analysis()
    memory = None if analysis is None else int(analysis.temp_size_in_bytes)
    return [np.asarray(x) for x in result], statistics.median(times), compiling, memory, None


def _spread(leaves: Leaves, gradient) -> list[Any]:
    out: list[Any] = [None] * len(leaves.all)
    for i, x in zip(leaves.where, gradient, strict=True):
        out[i] = x
    return out


def _disagreement(gradients: dict[str, list[np.ndarray]], name: str) -> float:
    """The largest distance of a method's entries from the median of all methods, relative to the largest entry."""
    flat = {k: _real_entries(g) for k, g in gradients.items()}
    middle = np.median(np.stack(list(flat.values())), axis=0)
    scale = float(np.max(np.abs(middle))) if middle.size else 0.0
    off = float(np.max(np.abs(flat[name] - middle))) if middle.size else 0.0
    return off / scale if scale > 0 else off


def _real_entries(gradient: list[np.ndarray]) -> np.ndarray:
    flat = np.concatenate([np.ravel(x).astype(np.complex128) for x in gradient])
    return np.concatenate([np.real(flat), np.imag(flat)])
