"""Captured functions: what the user's closures hold becomes an argument.

A right-hand side, affect, condition or cost is traced once into a jaxpr. Every array that it closes over, tracers of an
enclosing transformation included, comes out as a constant of that jaxpr, and from there on is passed like a parameter:
so it gets its gradient like one, and no tracer is left behind in a closure.

Mutable arrays (`jax.new_ref`) that a closure holds are refused by name, as their gradient would be lost. A NumPy buffer that
a function writes traced values to fails in JAX itself; a note on that exception names the buffer.

Two captures can be compared by `fingerprint`: equal fingerprints mean that the same compiled solve serves both.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import core
from jax.extend import core as jexc

from .closures import arrays_held, is_reference, mutable_buffers
from .extrema import evaluate, has_extrema


@dataclass(frozen=True, eq=False)
class Captured:
    """A function of arrays only: ``call(consts, *args)``."""

    jaxpr: Any
    out_tree: Any
    consts: tuple[Any, ...]
    keys: tuple[KeyData | None, ...] = ()  # how to make a PRNG key of a constant
    has_extrema: bool = False  # whose derivatives are not left to JAX

    def __call__(self, consts, *args):
        flat = jax.tree.leaves(args)
        consts = [x if key is None else key.wrap(x) for x, key in zip(consts, self.keys, strict=True)]
        if self.has_extrema:
            return self.out_tree.unflatten(evaluate(self.jaxpr, consts, *flat))
        closed = jexc.ClosedJaxpr(self.jaxpr, consts)
        return self.out_tree.unflatten(jexc.jaxpr_as_fun(closed)(*flat))


@dataclass(frozen=True)
class KeyData:
    """A PRNG key that travels as the integers it is made of; ``wrap`` makes it a key again."""

    impl: Any

    def wrap(self, data: Any) -> Any:
        return jax.random.wrap_key_data(data, impl=self.impl)


def is_key(x: Any) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def capture(function: Callable, *args: Any, owner: Callable | None = None) -> Captured:
    """Trace ``function(*args)``; ``args`` are pytrees of arrays, tracers or shapes.

    ``owner``: the user's function inside it, whose closure names what it holds. Raises TypeError where that is a mutable
    array.
    """
    owner = function if owner is None else owner
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), jax.numpy.result_type(x), weak_type=_weak(x)), args)
    try:
        closed, out = jax.make_jaxpr(function, return_shape=True)(*shapes)
    except (jax.errors.JAXTypeError, TypeError, ValueError) as error:
        explain(error, owner)
        to_numpy = isinstance(error, jax.errors.TracerArrayConversionError) or "array element" in str(error)
        buffers = mutable_buffers(owner) if to_numpy else []
        if buffers:
            error.add_note(
                f"The function holds mutable buffers: {', '.join(buffers)}. If it writes to one: a NumPy buffer cannot take "
                "traced values. Build the array with jax.numpy inside the function, and return or pass it."
            )
        raise
    if any(is_reference(x) for x in closed.consts):
        named = [name for name, x in arrays_held(owner) if is_reference(x)]
        raise TypeError(
            f"A function closes over a mutable array (jax.new_ref): {', '.join(named) or 'unnamed'}. What is written to it "
            "has no gradient. Build the array inside the function, or pass its value in p."
        )
    keys = tuple(KeyData(jax.random.key_impl(x)) if is_key(x) else None for x in closed.consts)
    consts = tuple(jax.random.key_data(x) if key else x for x, key in zip(closed.consts, keys, strict=True))
    return Captured(closed.jaxpr, jax.tree.structure(out), consts, keys, has_extrema(closed.jaxpr))


def explain(error: Exception, owner: Callable) -> None:
    """Add to an error of tracing what the user's function is asked to be, where that was the trouble."""
    name = getattr(owner, "__name__", type(owner).__name__)
    if isinstance(error, jax.errors.JAXTypeError):
        error.add_note(
            f"In {name}: u, p and t are traced JAX arrays. Use jax.numpy in place of numpy, and jnp.where or jax.lax.cond in "
            "place of a Python if on their values. A right-hand side that must run NumPy is a hybridax.HostVJP."
        )
    elif "positional argument" in str(error):
        error.add_note(
            f"In {name}: right-hand sides, conditions, affects and running costs are called as {name}(u, p, t): state, "
            "parameters, time."
        )


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
        if type(x).__name__ == "PRNGImpl":
            return _Same(x)
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
