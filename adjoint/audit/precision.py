"""In which precision a product is formed: the coarsest rounding unit on the paths from an input to an output of a jaxpr.

A product ``lam' df/dx`` goes back along the paths on which f goes forth, so that it is as good as the coarsest value that
depends on x. What is merely multiplied into it, such as other inputs, is held exactly in whatever precision it has.
Inner functions with the arguments of their call are entered; loops and branches count as one step, as good as the coarsest
value within.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
from jax.extend import core as jexc

Units = dict[int, float]  # input -> the coarsest rounding unit on the way from it


def unit(dtype: Any) -> float:
    """The rounding unit of a dtype; 0 where it does not round."""
    return float(jnp.finfo(dtype).eps) if jnp.issubdtype(dtype, jnp.inexact) else 0.0


def rounding_units(f: Callable, values: Sequence[Any]) -> list[Units]:
    """For each leaf of ``f(*values)``: the inputs that reach it, with the coarsest rounding unit on the way."""
    jaxpr = jax.make_jaxpr(f)(*values)
    return _units(jaxpr, [{i: unit(jnp.result_type(x))} for i, x in enumerate(values)])


def _units(jaxpr: Any, inputs: Sequence[Units]) -> list[Units]:
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    known: dict[Any, Units] = dict(zip(jaxpr.invars, inputs, strict=True))

    def read(v: Any) -> Units:
        return {} if isinstance(v, jexc.Literal) else known.get(v, {})

    for eqn in jaxpr.eqns:
        outs = _equation(eqn, [read(v) for v in eqn.invars])
        for var, units in zip(eqn.outvars, outs, strict=True):
            own = _own(var)
            known[var] = {i: max(x, own) for i, x in units.items()}
    return [read(v) for v in jaxpr.outvars]


def _equation(eqn: Any, ins: list[Units]) -> list[Units]:
    inner = list(_inner(eqn))
    if len(inner) == 1 and eqn.primitive.name not in ("scan", "while"):
        if len(inner[0].invars) == len(ins) and len(inner[0].outvars) == len(eqn.outvars):
            return _units(inner[0], ins)
    within = max((_coarsest(jaxpr) for jaxpr in inner), default=0.0)
    merged: Units = {}
    for units in ins:
        for i, x in units.items():
            merged[i] = max(merged.get(i, within), x)
    return [merged] * len(eqn.outvars)


def _inner(eqn: Any) -> Iterator[Any]:
    """The open jaxprs that an equation holds."""
    for value in eqn.params.values():
        for x in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(x, (jexc.Jaxpr, jexc.ClosedJaxpr)):
                yield getattr(x, "jaxpr", x)


def _coarsest(jaxpr: Any) -> float:
    own = (_own(v) for eqn in jaxpr.eqns for v in eqn.outvars)
    return max([0.0, *own, *(_coarsest(x) for eqn in jaxpr.eqns for x in _inner(eqn))])


def _own(var: Any) -> float:
    dtype = getattr(var.aval, "dtype", None)
    return 0.0 if dtype is None else unit(dtype)
