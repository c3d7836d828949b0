"""HostVJP: a simulator outside JAX as a right-hand side, with its vector-Jacobian product, in NumPy.

A call crosses from the compiled solve to Python and back, for some 40 microseconds on a CPU beside the simulator's own
time (benchmarks/host_calls.py); on an accelerator its arrays travel to the host. Inside the call nothing of JAX runs.
"""

from __future__ import annotations

import functools
import threading
import warnings
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Callable

import jax
import jax.numpy as jnp
from jax import core

from ..params import split_params
from .arguments import check_arguments
from .base import RHS
from .colouring import check_pattern
from .host_calls import Carried, HostCall
from .host_primitive import call_host

PARTS = ("vjp_u", "vjp_p", "vjp_t")


@dataclass(frozen=True, eq=False)
class HostVJP:
    """A right-hand side in NumPy, for ``ODEProblem(host, u0, tspan, p)``, with its own vector-Jacobian product.

    rhs: ``rhs(du, u, p, t)`` writes du/dt into the arrays of ``du``, all of it; with ``in_place=False``,
    ``rhs(u, p, t)`` returns it. vjp: ``vjp(lam, u, p, t) -> (u part, p part)``, that is ``lam' df/du`` and
    ``lam' df/dp`` in the structures of ``u`` and ``p``. Or apart: ``vjp_u(lam, u, p, t)``, ``vjp_p(lam, u, p, t)``, and
    ``vjp_t(lam, u, p, t)``, a number. They return their result, also with ``in_place=True``. With complex numbers
    cotangents follow JAX: no conjugation.

    ``u``, ``p`` and ``lam`` arrive in the user's own pytrees, with NumPy arrays as leaves, read-only copies; ``t`` is a
    number. Results are copied. Leaves of ``p`` that are not floating point may get anything, None too, for a cotangent.

    Where only the state's cotangent is needed, ``vjp_p`` is not called; ``vjp`` gives both and is called for either.
    Parts that are not given are central differences of ``rhs`` on the host: 2 n calls for u, 2 m for the m floating-point
    numbers in p, 2 for t (only where a time's gradient is asked for). ``sparsity (n, n)``, true at (i, j) where
    du_i/dt depends on u_j, differences the columns of one colour together. Construction warns if u or p is differenced.

    batched: one call for many points (lanes of a vmap, stages of a batch): leaves of ``u``, ``du`` and ``lam`` have one
    more axis in front, ``t`` is ``(points,)``, ``p`` is shared, and the p part is the sum over points.

    A host is itself callable as ``host(u, p, t)`` inside another right-hand side in JAX, with its gradient, and can be
    an affect, whose ``du`` is then the state after the event. What ``rhs`` closes over has no gradient: it belongs in
    ``p``. Calls of one host never overlap. Exceptions of the user's functions leave a solve outside jit unchanged;
    inside jit and in reverse passes JAX reports them as ``JaxRuntimeError``, with their text.

    Forward-mode and second derivatives raise TypeError.
    """

    rhs: Callable
    vjp: Callable | None = None
    in_place: bool = True
    _: KW_ONLY
    vjp_u: Callable | None = None
    vjp_p: Callable | None = None
    vjp_t: Callable | None = None
    batched: bool = False
    sparsity: Any = None
    pattern: Any = field(init=False, default=None, repr=False)
    lock: Any = field(init=False, repr=False)

    def __post_init__(self):
        for name in ("rhs", "vjp", *PARTS):
            g = getattr(self, name)
            if not callable(g) and (g is not None or name == "rhs"):
                raise TypeError(f"HostVJP: {name} must be callable; got {type(g).__name__}.")
        if self.vjp is not None and (self.vjp_u is not None or self.vjp_p is not None):
            raise ValueError("HostVJP: give either vjp, or vjp_u and vjp_p; not both.")
        how = " in_place=True writes into du, in_place=False returns it."
        check_arguments("HostVJP", "rhs", self.rhs, ("du", "u", "p", "t") if self.in_place else ("u", "p", "t"), how)
        for name in ("vjp", *PARTS):
            if getattr(self, name) is not None:
                check_arguments("HostVJP", name, getattr(self, name), ("lam", "u", "p", "t"))
        object.__setattr__(self, "lock", threading.RLock())
        if self.sparsity is not None:
            if self.vjp is not None or self.vjp_u is not None:
                raise ValueError("HostVJP: sparsity is for differences; the u part is given and needs none.")
            object.__setattr__(self, "pattern", check_pattern(self.sparsity))
        missing = [] if self.vjp is not None else [n for n in ("vjp_u", "vjp_p") if getattr(self, n) is None]
        if missing:
            warnings.warn(
                f"HostVJP: {' and '.join(missing)} not given; central differences of rhs stand in: two calls of rhs for "
                f"each {'component of u' if self.sparsity is None else 'colour of u'} and each number in p, accurate to "
                "about 1e-10 in float64. Give vjp=, or vjp_u= and vjp_p=, for exact and cheaper gradients.",
                stacklevel=3,
            )

    def __call__(self, u: Any, p: Any, t: Any) -> Any:
        """du/dt by the host, in JAX, with the host's derivative."""
        for name in ("rhs", "vjp", *PARTS):
            _refuse_traced_closure(name, getattr(self, name))
        leaves, tree = jax.tree.flatten(u)
        leaves = [jnp.asarray(x) for x in leaves]
        params = split_params(p)
        self._check(leaves, params.dynamic)
        static = tuple(map(Carried, params.static))
        call = HostCall(self, tree, params.treedef, static)
        outs = tuple((x.shape, x.dtype) for x in leaves)
        out = call_host(*leaves, *params.dynamic, jnp.asarray(t), call=call, outs=outs)
        return tree.unflatten(out)

    def dress(self, f: RHS) -> RHS:
        """As a backend a host serves itself alone."""
        if getattr(f, "__wrapped__", f) is not self:
            raise TypeError(
                "HostVJP brings its own right-hand side: write ODEProblem(host, u0, tspan, p). For a hand-written VJP of "
                "a right-hand side in JAX use HandWrittenVJP; to combine both, call host(u, p, t) inside f."
            )
        return f

    def _check(self, u: list[Any], p: tuple[Any, ...]) -> None:
        for x in (*u, *p):
            if jnp.issubdtype(x.dtype, jax.dtypes.extended):
                raise TypeError(f"HostVJP: NumPy has no arrays of {x.dtype}; pass jax.random.key_data(key) in p instead.")
        n = sum(x.size for x in u)
        if self.pattern is not None and self.pattern.shape != (n, n):
            raise ValueError(f"HostVJP: sparsity has shape {self.pattern.shape}; u has {n} components, expected {(n, n)}.")


def _refuse_traced_closure(name: str, function: Any) -> None:
    while isinstance(function, functools.partial):
        if any(isinstance(x, core.Tracer) for x in jax.tree.leaves((function.args, function.keywords))):
            raise TypeError(_TRACED.format(name=name, what="a bound argument"))
        function = function.func
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None) or ()
    for variable, cell in zip(code.co_freevars if code else (), cells, strict=False):
        try:
            leaves = jax.tree.leaves(cell.cell_contents)
        except ValueError:  # an empty cell
            continue
        if any(isinstance(x, core.Tracer) for x in leaves):
            raise TypeError(_TRACED.format(name=name, what=repr(variable)))


_TRACED = (
    "HostVJP: {name} closes over {what}, which is traced by JAX (under jit, grad or vmap). A host function cannot see its "
    "value, and would lose its gradient: pass it in p."
)
