"""Captured functions: what the user's closures hold becomes an argument.

A right-hand side, affect, condition or cost is traced once into a jaxpr. Every array that it closes over, tracers of an
enclosing transformation included, comes out as a constant of that jaxpr, and from there on is passed like a parameter:
so it gets its gradient like one, and no tracer is left behind in a closure.

Two captures can be compared by `fingerprint`: equal fingerprints mean that the same compiled solve serves both.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Callable

import jax
import numpy as np
from jax import core
from jax.extend import core as jexc


@dataclass(frozen=True, eq=False)
class Captured:
    """A function of arrays only: ``call(consts, *args)``."""

    jaxpr: Any
    out_tree: Any
    consts: tuple[Any, ...]

    def __call__(self, consts, *args):
        flat = jax.tree.leaves(args)
        closed = jexc.ClosedJaxpr(self.jaxpr, list(consts))
        return self.out_tree.unflatten(jexc.jaxpr_as_fun(closed)(*flat))


def capture(function: Callable, *args: Any) -> Captured:
    """Trace ``function(*args)``; ``args`` are pytrees of arrays, tracers or shapes."""
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(np.shape(x), jax.numpy.result_type(x), weak_type=_weak(x)), args
    )
    closed, out = jax.make_jaxpr(function, return_shape=True)(*shapes)
    return Captured(closed.jaxpr, jax.tree.structure(out), tuple(closed.consts))


def _weak(x: Any) -> bool:
    return bool(getattr(jax.typeof(x), "weak_type", False)) if not isinstance(x, jax.ShapeDtypeStruct) else False


#: `checkpoint_name` of a custom derivative whose pullback is known by its name
DERIVATIVE_NAME = "hybridax derivative"


class Opaque(Exception):
    """A jaxpr holds something that cannot be compared by value."""


def fingerprint(jaxpr: Any, loose: bool = False) -> tuple:
    """A hashable description of a jaxpr, equal for equal computations.

    Function objects among the parameters of primitives cannot be compared: with ``loose`` they count by type only, and
    else the description of a jitted function that holds one is its identity, or `Opaque` is raised.
    """
    names: dict[Any, int] = {}

    def var(v: Any) -> Any:
        if isinstance(v, jexc.Literal):
            value = np.asarray(v.val)
            return ("lit", value.dtype.str, value.shape, value.tobytes())
        return names.setdefault(v, len(names))

    def param(x: Any) -> Any:
        if isinstance(x, jexc.ClosedJaxpr):
            try:
                return ("closed", fingerprint(x.jaxpr, loose), tuple(map(param, x.consts)))
            except Opaque:
                if x.consts:
                    raise
                return _Same(x)
        if isinstance(x, jexc.Jaxpr):
            return ("open", fingerprint(x, loose))
        if isinstance(x, (tuple, list)):
            return (type(x).__name__, *map(param, x))
        if isinstance(x, dict):
            return ("dict", *((k, param(v)) for k, v in sorted(x.items(), key=lambda i: str(i[0]))))
        if isinstance(x, (np.ndarray, jax.Array)) and not isinstance(x, core.Tracer):
            value = np.asarray(x)
            return ("array", value.dtype.str, value.shape, value.tobytes())
        if x is None or type(x).__name__ == "UnspecifiedValue":
            return type(x)
        if isinstance(x, (type, enum.Enum)) or (not callable(x) and type(x).__eq__ is not object.__eq__ and _hashable(x)):
            return x
        if loose:
            return type(x)
        raise Opaque(type(x).__name__)

    def params(e: Any) -> dict[str, Any]:
        if e.primitive.name.startswith("custom_vjp_call") and _named(e.params.get("call_jaxpr")):
            return {"call_jaxpr": e.params["call_jaxpr"]}
        return e.params

    ins = tuple((var(v), _aval(v)) for v in (*jaxpr.constvars, *jaxpr.invars))
    eqns = tuple(
        (
            e.primitive.name,
            tuple(map(var, e.invars)),
            tuple((var(v), _aval(v)) for v in e.outvars),
            tuple((k, param(v)) for k, v in sorted(params(e).items())),
        )
        for e in jaxpr.eqns
    )
    return ins, eqns, tuple(map(var, jaxpr.outvars))


def _named(closed: Any) -> bool:
    """Whether a custom derivative carries the name of its pullback."""
    eqns = getattr(getattr(closed, "jaxpr", closed), "eqns", ())
    return any(str(e.params.get("name", "")).startswith(DERIVATIVE_NAME) for e in eqns if e.primitive.name == "name")


def _aval(v: Any) -> tuple:
    a = v.aval
    return (getattr(a, "shape", None), str(getattr(a, "dtype", a)))


def _hashable(x: Any) -> bool:
    try:
        hash(x)
    except TypeError:
        return False
    return True


class _Same:
    """Equal only to the same object, which it keeps alive."""

    def __init__(self, x: Any):
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.x is other.x

    def __hash__(self) -> int:
        return id(self.x)
