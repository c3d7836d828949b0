"""The conformance kit: reference problems that any VJP backend and any sensitivity method must get right.

For those who write one outside this repository. Gradients are compared with closed forms (see `logistic`), in the precision
that JAX is in. Needs no test runner: a failure is a `ConformanceError`, an AssertionError that names the case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from ..discrete import DiscreteAdjoint
from ..quadrature import QuadratureAdjoint
from ..sensealg import SensitivityMethod
from ..vjp import VJPBackend
from .compare_vjp import check_vjp
from .differences import Leaves
from .logistic import CAPTURED, PERIODIC, REACHED, SMOOTH, WRITTEN, LogisticField, Reference, exact_gradient, start

#: how the gradient is taken: each transformation at least once
EAGER, JIT, VMAP = "outside jit", "under jit", "under vmap"


class ConformanceError(AssertionError):
    """A backend or method fails a case of the kit; ``case`` names it."""

    def __init__(self, case: str, message: str):
        super().__init__(f"{case}: {message}")
        self.case = case


@dataclass(frozen=True)
class Conformance:
    """The cases that passed, each with its largest relative error."""

    subject: str
    errors: dict[str, float]

    def __str__(self) -> str:
        width = max(map(len, self.errors))
        return "\n".join([f"{self.subject} conforms:", *(f"  {k:{width}}  {e:8.1e}" for k, e in self.errors.items())])

    __repr__ = __str__


def check_backend(
    backend: VJPBackend | Callable[[LogisticField], VJPBackend],
    *,
    methods: tuple[SensitivityMethod, ...] = (DiscreteAdjoint(), QuadratureAdjoint()),
    rtol: float | None = None,
    skip: tuple[str, ...] = (),
) -> Conformance:
    """Run the conformance cases on a VJP backend.

    backend: a backend; or, for one that belongs to a right-hand side, a function that makes it from the reference
    problem, whose ``f, vjp_u, vjp_p, vjp_t`` are written in operators that NumPy and JAX share. methods: sensitivity
    methods to go through. rtol: largest relative error, 1e-7 in float64 and 2e-3 in float32. skip: cases left out, by
    name.

    Cases: the products at a point, ``vjp``; a smooth problem, a periodic jump with initial affect, a preset jump that
    writes parameters, outside jit, under jit and under vmap, with leaves of p that must arrive as they were given; arrays
    that f captures, where an exception conforms as well, and zeros do not.

    Returns the errors. Raises `ConformanceError`, an AssertionError that names the first case to fail.
    """
    field = LogisticField()
    made: Any = backend
    if callable(backend) and (isinstance(backend, type) or not hasattr(backend, "dress")):
        made = backend(field)
    if isinstance(made, type) or not isinstance(made, VJPBackend):
        raise TypeError(f"check_backend: expected a VJP backend, or a function that makes one; got {made!r}.")
    tolerance = _limit(rtol)
    errors: dict[str, float] = {}
    u0, p = start()
    for name in _chosen(("vjp",), skip):
        report = _guarded(name, lambda: check_vjp(field.f, made, u0, p, 0.4, throw=False))
        bad = report.first_mismatch
        if bad is not None:
            raise ConformanceError(
                name, f"the product at {bad.place} is {bad.got:.8g}; expected {bad.expected:.8g}, by finite differences."
            )
        errors[name] = max(leaf.error for leaf in report.leaves)
    try:
        hash(made)
    except TypeError as error:
        raise ConformanceError("hash", f"a backend must be hashable; make it a frozen dataclass. {error}") from error
    ways = {SMOOTH: EAGER, PERIODIC: JIT, WRITTEN: VMAP}
    for method in methods:
        for reference, way in ways.items():
            for name in _chosen((f"{reference.name}, {way}, {type(method).__name__}",), skip):
                errors[name] = _compare(name, reference, way, tolerance, sensealg=method, vjp=made)
    for name in _chosen((f"{CAPTURED.name}, {type(methods[0]).__name__}",), skip):
        try:
            errors[name] = _compare(name, CAPTURED, JIT, tolerance, sensealg=methods[0], vjp=made)
        except ConformanceError as error:
            if error.__cause__ is None:
                raise
    return Conformance(repr(made), errors)


def check_sensealg(method: SensitivityMethod, *, rtol: float | None = None, skip: tuple[str, ...] = ()) -> Conformance:
    """Run the conformance cases on a sensitivity method.

    rtol: largest relative error, 1e-7 in float64 and 2e-3 in float32; the solves are at 1e-10 and 1e-6. skip: cases left
    out, by name.

    Cases: a smooth problem with a running cost; a periodic jump with initial affect, where f and the affect capture their
    arrays; a preset jump that writes parameters at times that are learned; an event on the state; outside jit, under jit
    and under vmap.

    Returns the errors. Raises `ConformanceError`, an AssertionError that names the first case to fail.
    """
    if not isinstance(method, SensitivityMethod):
        raise TypeError(f"check_sensealg: expected a sensitivity method such as DiscreteAdjoint(); got {method!r}.")
    tolerance = _limit(rtol)
    ways = {SMOOTH: EAGER, CAPTURED: JIT, WRITTEN: VMAP, REACHED: EAGER}
    errors: dict[str, float] = {}
    for reference, way in ways.items():
        for name in _chosen((f"{reference.name}, {way}",), skip):
            errors[name] = _compare(name, reference, way, tolerance, sensealg=method)
    return Conformance(repr(method), errors)


def _double() -> bool:
    return jnp.result_type(float) == np.float64


def _limit(rtol: float | None) -> float:
    return rtol if rtol is not None else 1e-7 if _double() else 2e-3


def _chosen(names: tuple[str, ...], skip: tuple[str, ...]) -> Iterator[str]:
    return (name for name in names if not any(name.startswith(s) for s in skip))


def _guarded(case: str, run: Callable[[], Any]) -> Any:
    try:
        return run()
    except ConformanceError:
        raise
    except Exception as error:
        raise ConformanceError(case, f"it raised {type(error).__name__}: {error}") from error


def _compare(case: str, reference: Reference, way: str, limit: float, **options: Any) -> float:
    """The relative error of the gradient with respect to u0 and p; raises where it is too large."""
    u0, p = start()
    leaves = Leaves(p, "p")
    tolerance = 1e-10 if _double() else 1e-6

    def gradient(u, values):
        return jax.grad(lambda a, b: reference.loss(a, leaves.rebuild(b), tolerance, **options), (0, 1))(u, values)

    exact = lambda u, values: exact_gradient(reference, u, leaves, values)  # noqa: E731
    point = (u0, leaves.values)
    if way == VMAP:
        point = jax.tree.map(lambda x: jnp.stack([x, x * np.asarray(0.97, x.dtype)]), point)
        gradient, exact = jax.jit(jax.vmap(gradient)), jax.vmap(exact)
    elif way == JIT:
        gradient = jax.jit(gradient)
    got, expected = _guarded(case, lambda: jax.block_until_ready(gradient(*point))), exact(*point)
    scale = max(float(jnp.max(jnp.abs(x))) for x in jax.tree.leaves(expected))
    worst = 0.0
    for name, a, b in zip(["u0", *leaves.names], [got[0], *got[1]], [expected[0], *expected[1]], strict=True):
        error = float(jnp.max(jnp.abs(a - b))) / scale
        if not error <= limit:
            raise ConformanceError(
                case,
                f"the gradient at {name} is {np.asarray(a)}; expected {np.asarray(b)}, in closed form. The error, relative "
                f"to the largest entry of the whole gradient, is {error:.1e}; the limit is {limit:.1e}.",
            )
        worst = max(worst, error)
    return worst
