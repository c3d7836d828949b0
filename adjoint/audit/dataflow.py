"""Where a gradient can flow: a data-flow analysis over jaxprs.

For every value of a computation the analysis keeps, for each input that reaches it, how it does: `LIVE`, along a path that
differentiates, or the reason why the path so far does not (a `Loss`). Primitives whose output is not floating point, or
whose derivative is zero everywhere, turn LIVE into a loss; all others hand on what comes in. Loops are followed to their
fixed point, branches and inner functions are entered. Functions with a derivative of their own (`jax.custom_jvp`,
`jax.custom_vjp`) are taken at their word: all their inputs are live. So an input is called lost only if it is.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Sequence

import jax
import jax.numpy as jnp
from jax.extend import core as jexc


@dataclass(frozen=True)
class Loss:
    """Why a path does not differentiate, and the line of the user's code where it breaks (or "")."""

    reason: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.reason} at {self.where}" if self.where else self.reason


LIVE = Loss("live")
COMPARISONS = frozenset("eq ne ge gt le lt eq_to ge_to gt_to le_to lt_to is_finite".split())
ROUNDING = frozenset("floor ceil round sign".split())
CUSTOM = frozenset("custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr".split())

Flow = dict[int, frozenset[Loss]]  # input -> how it gets here


def merge(*flows: Flow) -> Flow:
    out: Flow = {}
    for flow in flows:
        for source, ways in flow.items():
            out[source] = out.get(source, frozenset()) | ways
    return out


def lose(flow: Flow, loss: Loss) -> Flow:
    """What is left of a flow past a step that does not differentiate; earlier losses keep their reason."""
    return {source: frozenset(loss if w == LIVE else w for w in ways) for source, ways in flow.items()}


def follow(jaxpr: Any, inputs: Sequence[Flow]) -> list[Flow]:
    """The flows at the outputs of a jaxpr (closed or open), given those at its inputs; its constants carry none."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    flows: dict[Any, Flow] = dict(zip(jaxpr.invars, inputs, strict=True))

    def read(v: Any) -> Flow:
        return {} if isinstance(v, jexc.Literal) else flows.get(v, {})

    for eqn in jaxpr.eqns:
        outs = _equation(eqn, [read(v) for v in eqn.invars])
        for var, flow in zip(eqn.outvars, outs, strict=True):
            flows[var] = flow if _inexact(var) else lose(flow, _loss_of(eqn))
    return [read(v) for v in jaxpr.outvars]


def _inexact(var: Any) -> bool:
    dtype = getattr(var.aval, "dtype", None)
    return dtype is None or bool(jnp.issubdtype(dtype, jnp.inexact))


def _loss_of(eqn: Any) -> Loss:
    """Why an equation does not differentiate."""
    name = eqn.primitive.name
    if name in COMPARISONS:
        return Loss("comparison only", _line(eqn))
    if name in ("argmax", "argmin"):
        return Loss(f"index only ({name})", _line(eqn))
    return Loss("integer cast", _line(eqn))


def _equation(eqn: Any, ins: list[Flow]) -> list[Flow]:
    name, params = eqn.primitive.name, eqn.params
    count = len(eqn.outvars)
    if name == "stop_gradient":
        return [lose(flow, Loss("stop_gradient", _line(eqn))) for flow in ins]
    if name in ROUNDING:
        return [lose(merge(*ins), Loss(f"rounding ({name})", _line(eqn)))]
    if name in CUSTOM:
        return [merge(*ins)] * count
    if name == "cond":
        branches = [follow(branch, ins[1:]) for branch in params["branches"]]
        return [merge(ins[0], *flows) for flows in zip(*branches, strict=True)]
    if name == "scan":
        return _scan(params, ins)
    if name == "while":
        return _while(eqn, ins)
    inner = [x for x in params.values() if isinstance(x, (jexc.Jaxpr, jexc.ClosedJaxpr))]
    if len(inner) == 1:
        jaxpr = getattr(inner[0], "jaxpr", inner[0])
        if len(jaxpr.invars) == len(ins) and len(jaxpr.outvars) == count:
            return follow(jaxpr, ins)
    return [merge(*ins)] * count


def _scan(params: Any, ins: list[Flow]) -> list[Flow]:
    consts, carried = params["num_consts"], params["num_carry"]
    fixed, carry, xs = ins[:consts], ins[consts : consts + carried], ins[consts + carried :]
    while True:
        outs = follow(params["jaxpr"], [*fixed, *carry, *xs])
        grown = [merge(a, b) for a, b in zip(carry, outs[:carried], strict=True)]
        if grown == carry:
            return [*carry, *outs[carried:]]
        carry = grown


def _while(eqn: Any, ins: list[Flow]) -> list[Flow]:
    """A loop hands on what its body does; what its condition reads decides how often."""
    params = eqn.params
    tests, bodies = params["cond_nconsts"], params["body_nconsts"]
    test, body, carry = ins[:tests], ins[tests : tests + bodies], ins[tests + bodies :]
    while True:
        (predicate,) = follow(params["cond_jaxpr"], [*test, *carry])
        outs = follow(params["body_jaxpr"], [*body, *carry])
        grown = [merge(a, b, predicate) for a, b in zip(carry, outs, strict=True)]
        if grown == carry:
            return carry
        carry = grown


_LIBRARIES = tuple(os.path.dirname(m.__file__ or "") + os.sep for m in (jax, jnp))
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def _line(eqn: Any) -> str:
    """File and line of the user's code that an equation comes from; "" where it is not known."""
    frames = getattr(getattr(eqn.source_info, "traceback", None), "frames", ())
    for frame in frames:
        path = frame.file_name
        if not path.startswith((*_LIBRARIES, _HERE, "<")) and os.sep + "jax" + os.sep not in path:
            return f"{os.path.basename(path)}:{frame.line_num}"
    return ""
