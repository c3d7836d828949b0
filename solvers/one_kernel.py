"""Small loops as one native function each, on the CPU.

XLA runs every operation of a loop's body as a kernel of its own, and plans those of a body as a graph: for a state of a few
numbers that costs several times what the arithmetic does. A call that carries the attribute ``xla_cpu_small_call`` is
compiled as one function instead, loops included. `evaluate` cuts a program into runs of operations for which XLA can do that,
as long as they come, and makes such a call of each; what is in between is left as it is, and bodies of loops in between are
cut in the same way. Numbers are the same to rounding.

XLA fails, or ends the process, on operations that need its runtime or a library, and on calls with an argument that nothing
reads. So the operations are those of a list; products but those of a matrix and a vector, larger reductions, gathers and
scatters become loops of these (`as_loops`); and every argument is read: a sum of first entries is one more result. A barrier
keeps constants among the arguments out of the call, and where arrays come into it by another way, there is no call.

The attribute is XLA's own affair, and another version may fail on other operations: it is used with those in `KNOWN`, with
which the tests passed. ``HYBRIDAX_ONE_KERNEL=0`` or ``1`` in the environment, when the package is imported, decides otherwise.
"""

from __future__ import annotations

import os
from functools import reduce
from typing import Any, Callable, Sequence

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend import core as jexc

from .as_loops import LOOPS, MOST, REDUCTIONS, small
from .components import ELEMENTWISE, as_it_stands, size_of

KNOWN = ("0.10.2",)  # versions of jaxlib
ENABLED = os.environ.get("HYBRIDAX_ONE_KERNEL", str(int(jaxlib.__version__ in KNOWN))) == "1"
COPIED = 1024  # numbers of an array that a kernel in a loop may copy
FILLED = 2**22  # numbers that are all the same: an array that is made in a kernel need not be copied to it
REDUCED = 32  # numbers that a reduction may read: XLA hands larger ones to a library
FEWEST = 8  # operations of a run without a loop
ATTRIBUTES = {"xla_cpu_small_call": "true", "inlineable": "false"}
ITERATIONS = ("while", "scan")
#: primitives that stand for a jaxpr among their parameters
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}
SUPPORTED = ELEMENTWISE | frozenset(
    "argmax argmin broadcast_in_dim concatenate dynamic_slice dynamic_update_slice expand_dims iota optimization_barrier pad "
    "reshape rev slice split squeeze stack stop_gradient transpose unstack".split()
)


def evaluate(closed: Any, arguments: Sequence[Any], most: int = MOST, looping: bool = False) -> list[Any]:
    """The results of a closed jaxpr, its runs of operations on at most ``most`` numbers as one kernel each.

    ``looping``: it is the body of a loop. What a kernel changes in place elsewhere it copies when it is called, so that there
    large arrays stay out of kernels.
    """
    jaxpr = closed.jaxpr
    values = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))
    eqns = _live(jaxpr)
    last = _last_uses(eqns, jaxpr.outvars)
    start, results, fills = 0, set(_variables(jaxpr.outvars)), not looping and whole(jaxpr, most)

    def fits(eqn):
        if fills and eqn.primitive.name == "broadcast_in_dim" and size_of(eqn.invars[0]) == 1:
            return eqn.outvars[0] not in results and size_of(eqn.outvars[0]) <= FILLED
        return supported(eqn, most) and not (looping and any(size_of(v) > COPIED for v in (*eqn.invars, *eqn.outvars)))

    while start < len(eqns):
        end = start
        while end < len(eqns) and fits(eqns[end]):
            end += 1
        if end == start:
            eqn = eqns[start]
            values.update(zip(eqn.outvars, _between(eqn, [_read(values, v) for v in eqn.invars], most), strict=True))
            end += 1
        else:
            run = eqns[start:end]
            _run(run, [v for e in run for v in e.outvars if last.get(v, -1) >= end], values)
        start = end
    return [_read(values, v) for v in jaxpr.outvars]


def active() -> bool:
    """Whether programs that are traced now can be cut: not under a mesh whose axes are parts of types."""
    mesh = jax.sharding.get_abstract_mesh()
    manual = all(kind == jax.sharding.AxisType.Manual for kind in mesh.axis_types)
    return ENABLED and jax.default_backend() == "cpu" and (mesh.empty or manual)


def on_one_device(context: Any) -> bool:
    """Whether what is lowered in a context runs on one device as it stands: XLA puts exchanges between devices into it else."""
    axes = context.module_context.axis_context
    if hasattr(axes, "num_devices"):
        return axes.num_devices == 1
    mesh = getattr(axes, "mesh", None)
    return mesh is None or set(axes.manual_axes) >= set(mesh.axis_names)


def takes(jaxpr: Any) -> bool:
    """Whether what a step computes of a function of the user's fits in one kernel."""
    variables = (*jaxpr.constvars, *jaxpr.invars)
    small = all(map(_plain, variables)) and sum(map(size_of, variables)) <= MOST
    return active() and small and all(map(supported, jaxpr.eqns))


def whole(jaxpr: Any, most: int) -> bool:
    """Whether each loop and branch of a jaxpr is in a kernel as a whole."""
    return active() and all(supported(e, most) for e in jaxpr.eqns if _inner(e))


def supported(eqn: Any, most: int = MOST) -> bool:
    """Whether XLA can compile the operation into a larger function, and it makes at most ``most`` numbers."""
    if eqn.effects or not all(map(_plain, (*eqn.invars, *eqn.outvars))):
        return False
    inner = _inner(eqn)
    if inner:
        return all(supported(e, most) for closed in inner for e in closed.jaxpr.eqns)
    name = eqn.primitive.name
    if name in LOOPS:
        return native(eqn) or small(eqn, most)
    if name.startswith("arg") and size_of(eqn.invars[0]) > REDUCED:
        return False
    if name == "dynamic_update_slice":
        return size_of(eqn.invars[1]) <= most
    return name in SUPPORTED and all(size_of(v) <= most for v in eqn.outvars)


def _plain(v: Any) -> bool:
    """Whether a variable is an array of numbers of known shape."""
    aval = v.aval
    known = all(isinstance(d, int) for d in getattr(aval, "shape", (None,)))
    return known and not jnp.issubdtype(aval.dtype, jax.dtypes.extended)


def native(eqn: Any) -> bool:
    """Whether XLA needs no library for an operation of `as_loops`."""
    name = eqn.primitive.name
    if name == "dot_general":
        contracting, batch = eqn.params["dimension_numbers"]
        ranks = sorted(v.aval.ndim for v in eqn.invars)
        return ranks in ([1, 1], [1, 2]) and not batch[0] and len(contracting[0]) == 1 and size_of(eqn.outvars[0]) <= MOST
    return name in REDUCTIONS and size_of(eqn.invars[0]) <= REDUCED


def _inner(eqn: Any) -> list[Any]:
    name, params = eqn.primitive.name, eqn.params
    if name in CALLS:
        return [params[CALLS[name]]]
    if name == "while":
        # the condition of a mapped loop can be one for each lane, of which `lax.while_loop` knows nothing
        mapped = params["cond_jaxpr"].out_avals[0].ndim
        return [] if mapped else [params["cond_jaxpr"], params["body_jaxpr"]]
    if name == "scan":
        return [params["jaxpr"]]
    return list(params["branches"]) if name == "cond" else []


def _read(values: dict[Any, Any], v: Any) -> Any:
    return v.val if isinstance(v, jexc.Literal) else values[v]


def _live(jaxpr: Any) -> list[Any]:
    """The equations that a result needs: XLA would find the others too, but for the barriers behind the calls."""
    needed, kept = set(_variables(jaxpr.outvars)), []
    for eqn in reversed(jaxpr.eqns):
        if eqn.effects or not needed.isdisjoint(eqn.outvars):
            needed.update(_variables(eqn.invars))
            kept.append(eqn)
    return kept[::-1]


def _last_uses(eqns: list[Any], outvars: Sequence[Any]) -> dict[Any, int]:
    """The last equation that reads each variable."""
    reads = [*((i, e.invars) for i, e in enumerate(eqns)), (len(eqns), outvars)]
    return {v: i for i, variables in reads for v in _variables(variables)}


def _variables(atoms: Sequence[Any]) -> list[Any]:
    return [v for v in atoms if not isinstance(v, jexc.Literal)]


def _run(run: list[Any], outs: list[Any], values: dict[Any, Any]) -> None:
    """Compute a run of equations, and enter the results ``outs``."""
    made = {v for e in run for v in e.outvars}
    read = dict.fromkeys(v for e in run for v in e.invars if not isinstance(v, jexc.Literal) and v not in made)
    ins = [v for v in read if size_of(v)]

    def empty():
        return {v: jnp.zeros(v.aval.shape, v.aval.dtype) for v in (*read, *made) if not size_of(v)}

    def function(*arguments):
        # arrays from outside would be arguments that nothing reads
        inner = {**empty(), **dict(zip(ins, arguments, strict=True))}
        for eqn in run:
            inner.update(zip(eqn.outvars, _within(eqn, [_read(inner, v) for v in eqn.invars]), strict=True))
        return [inner[v] for v in outs if size_of(v)]

    arguments = [jnp.asarray(values[v]) for v in ins]
    # a run without arguments is made of constants, one without results only of empty ones
    worth = len(run) >= FEWEST or any(e.primitive.name in ITERATIONS for e in run)
    results = _as_kernel(function, arguments) if worth and arguments and any(map(size_of, outs)) else function(*arguments)
    values.update(empty())
    values.update(zip([v for v in outs if size_of(v)], results, strict=True))


def _as_kernel(function: Callable, arguments: list[Any]) -> list[Any]:
    def with_witness(*arguments):
        return [reduce(lax.add, map(_first, arguments)), *function(*arguments)]

    kernel = jax.jit(with_witness)
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.aval.weak_type) for x in arguments]
    if any(np.ndim(x) for x in kernel.trace(*shapes).jaxpr.consts):
        # an array that XLA passes as an argument of its own may be one that nothing reads
        return function(*arguments)
    witness, *results = kernel(*lax.optimization_barrier(tuple(arguments)))
    # the attributes are those of the call, whichever result carries them to it
    witness = set_xla_metadata(witness, **ATTRIBUTES)
    # a result that nothing reads would be dropped, and with it the attributes
    return list(lax.optimization_barrier((witness, *results)))[1:]


def _first(x: Any) -> Any:
    """The first number of an array."""
    one = lax.reshape(lax.slice(x, (0,) * x.ndim, (1,) * x.ndim), ())
    return lax.convert_element_type(lax.real(one) if jnp.issubdtype(x.dtype, np.complexfloating) else one, np.float32)


def _between(eqn: Any, inputs: list[Any], most: int) -> list[Any]:
    """An equation that is in no run; its loops and branches are cut in turn."""
    if eqn.effects or not _inner(eqn):
        return as_it_stands(eqn, inputs)
    return _with_parts(eqn, inputs, lambda closed, args: evaluate(closed, args, most, looping=True))


def _within(eqn: Any, inputs: list[Any]) -> list[Any]:
    """An equation of a run."""
    name = eqn.primitive.name
    if name in LOOPS and not native(eqn):
        return LOOPS[name](eqn, *inputs)
    return _with_parts(eqn, inputs, _evaluate_within) if _has_loops_to_come(eqn) else as_it_stands(eqn, inputs)


def _evaluate_within(closed: Any, arguments: Sequence[Any]) -> list[Any]:
    values = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(closed.jaxpr.invars, arguments, strict=True))
    for eqn in closed.jaxpr.eqns:
        values.update(zip(eqn.outvars, _within(eqn, [_read(values, v) for v in eqn.invars]), strict=True))
    return [_read(values, v) for v in closed.jaxpr.outvars]


def _has_loops_to_come(eqn: Any) -> bool:
    """Whether something inside an equation is to become a loop."""
    inner = (e for closed in _inner(eqn) for e in closed.jaxpr.eqns)
    return any(_has_loops_to_come(e) or (e.primitive.name in LOOPS and not native(e)) for e in inner)


def _with_parts(eqn: Any, inputs: list[Any], evaluate: Callable) -> list[Any]:
    """An equation that stands for jaxprs, each of them evaluated by ``evaluate``."""
    name, params = eqn.primitive.name, eqn.params
    if name == "while":
        count = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        for_cond, for_body, carry = inputs[: count[0]], inputs[count[0] : count[1]], inputs[count[1] :]
        cond, body = params["cond_jaxpr"], params["body_jaxpr"]
        go_on = _evaluate_within if evaluate is _evaluate_within else _as_traced
        return list(
            lax.while_loop(
                lambda c: go_on(cond, [*for_cond, *c])[0], lambda c: tuple(evaluate(body, [*for_body, *c])), tuple(carry)
            )
        )
    if name == "scan":
        body, consts, count = params["jaxpr"], inputs[: params["num_consts"]], params["num_carry"]
        carry, xs = inputs[len(consts) : len(consts) + count], inputs[len(consts) + count :]

        def step(c, x):
            outs = evaluate(body, [*consts, *c, *x])
            return tuple(outs[:count]), tuple(outs[count:])

        how = {key: params[key] for key in ("length", "reverse", "unroll")}
        carry, ys = lax.scan(step, tuple(carry), tuple(xs), **how)
        return [*carry, *ys]
    if name == "cond":
        index, *operands = inputs
        branches = [lambda *x, closed=closed: tuple(evaluate(closed, x)) for closed in params["branches"]]
        return list(lax.switch(index, branches, *operands))
    return evaluate(params[CALLS[name]], inputs)


def _as_traced(closed: Any, arguments: Sequence[Any]) -> list[Any]:
    return jexc.jaxpr_as_fun(closed)(*arguments)
