"""From one call of XLA to the user's functions: leaves, and batches of points.

Arrays come with the axes of every enclosing `jax.vmap` in front, of length 1 where an argument is shared. A function of
one point is called for every point in turn; one that is ``batched`` is called once for all points that share their
parameters. Cotangents of shared arguments are summed over points here, before anything is copied back.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..params import MOVES, Params
from .host_differences import parameter_part, state_part, time_part
from .host_errors import remember
from .host_functions import HostFunctions
from .host_primitive import Outs


@dataclass(frozen=True)
class HostCall:
    """Which host, the structures of its arguments, and what to compute: the value, or ``wanted`` cotangents.

    Arguments are the leaves of u, the dynamic leaves of p, t, and for cotangents lam; ``wanted`` counts through the
    first three. Compared by value: equal calls share compiled programs.
    """

    host: Any
    u_tree: Any
    p_tree: Any
    p_static: tuple[Carried, ...]
    wanted: tuple[int, ...] | None = None

    @functools.cached_property
    def functions(self) -> HostFunctions:
        static = tuple(c.value for c in self.p_static)
        return HostFunctions(self.host, self.u_tree, Params(self.p_tree, static, (), (None,) * self.parameters))

    @functools.cached_property
    def parameters(self) -> int:
        """The number of dynamic leaves of p."""
        return sum(c.value is MOVES for c in self.p_static)

    def pullback(self, wanted: tuple[int, ...]) -> HostCall:
        return replace(self, wanted=wanted)

    def parts(self, wanted: tuple[int, ...]) -> list[tuple[int, ...]]:
        """``wanted`` in groups that one function of the host gives together."""
        n = self.u_tree.num_leaves
        last = n + self.parameters
        groups = [(0, last)] if self.host.vjp is not None else [(0, n), (n, last)]
        parts = [tuple(i for i in wanted if a <= i < b) for a, b in (*groups, (last, last + 1))]
        return [part for part in parts if part]

    def run(self, batch: tuple[int, ...], outs: Outs, *flat: Any) -> tuple[np.ndarray, ...]:
        try:
            with self.host.lock:
                return _Batch(self, batch, outs, [np.asarray(x) for x in flat]).run()
        except Exception as error:
            remember(error)
            raise


@dataclass(frozen=True, eq=False)
class Carried:
    """A leaf of p that is not an array, by type and value."""

    value: Any

    def __eq__(self, other: object) -> bool:
        a, b = self.value, other.value if isinstance(other, Carried) else other
        return a is b or (type(a) is type(b) and bool(a == b))

    def __hash__(self) -> int:
        return hash(type(self.value))


class _Batch:
    def __init__(self, call: HostCall, batch: tuple[int, ...], outs: Outs, flat: list[np.ndarray]):
        self.host, self.wanted, self.batch, self.outs = call.host, call.wanted, batch, outs
        self.functions, self.nu, self.np = call.functions, call.u_tree.num_leaves, call.parameters
        self.args = flat
        self.axes = len(batch)

    def run(self) -> tuple[np.ndarray, ...]:
        if not self.axes and not self.host.batched:
            return tuple(self._point(self.args))
        results = [np.zeros(shape, dtype) for shape, dtype in self.outs]
        apart = [not self.host.batched or self._parameters_differ(axis) for axis in range(self.axes)]
        rest = tuple(s for s, a in zip(self.batch, apart, strict=True) if not a)
        for place in np.ndindex(*(s if a else 1 for s, a in zip(self.batch, apart, strict=True))):
            args = [self._at(x, place, apart, rest, i) for i, x in enumerate(self.args)]
            for result, part in zip(results, self._point(args), strict=True):
                self._add(result, part, place, apart, rest)
        return tuple(results)

    def _is_parameter(self, i: int) -> bool:
        return self.nu <= i < self.nu + self.np

    def _parameters_differ(self, axis: int) -> bool:
        """Whether points along an axis have parameters, or cotangents of parameters, of their own."""
        own = [x.shape[axis] for i, x in enumerate(self.args) if self._is_parameter(i)]
        if self.wanted is not None:
            own += [s[axis] for i, (s, _) in zip(self.wanted, self.outs, strict=True) if self._is_parameter(i)]
        return any(size != 1 for size in own)

    def _at(self, x: np.ndarray, place, apart, rest, i: int) -> np.ndarray:
        index = tuple(
            (k if x.shape[axis] > 1 else 0) if a else slice(None)
            for axis, (k, a) in enumerate(zip(place, apart, strict=True))
        )
        x = x[index]
        core = x.shape[len(rest) :]
        if not self.host.batched:
            return x
        if self._is_parameter(i):
            return x.reshape(core)
        return np.broadcast_to(x, rest + core).reshape(-1, *core)

    def _add(self, result: np.ndarray, part: np.ndarray, place, apart, rest) -> None:
        index = tuple(
            (k if result.shape[axis] > 1 else 0) if a else slice(None)
            for axis, (k, a) in enumerate(zip(place, apart, strict=True))
        )
        target = result[index]
        core = target.shape[len(rest) :]
        if part.shape != core:  # points in front
            part = part.reshape(rest + core)
            shared = tuple(axis for axis in range(len(rest)) if target.shape[axis] == 1)
            part = part.sum(shared, keepdims=True, dtype=part.dtype)
        else:
            part = part.reshape(target.shape)
        result[index] += part

    def _point(self, args: list[np.ndarray]) -> list[np.ndarray]:
        """Results at one point, or at one set of points with common parameters."""
        nu, n = self.nu, self.nu + self.np
        u, p, t, lam = args[:nu], args[nu:n], args[n], args[n + 1 :]
        functions, host = self.functions, self.host
        if self.wanted is None:
            return functions.rhs(u, p, t)
        parts: dict[int, Any] = {}
        wants_u, wants_p = any(i < nu for i in self.wanted), [i - nu for i in self.wanted if self._is_parameter(i)]
        du = dp = None
        if host.vjp is not None and (wants_u or wants_p):
            du, dp = functions.products(lam, u, p, t)
        if wants_u:
            if du is None and host.vjp_u is not None:
                du = functions.product("vjp_u", lam, u, p, t)
            if du is None:
                du = state_part(functions.rhs, lam, u, p, t, host.pattern, host.batched)
            parts |= dict(enumerate(du))
        if wants_p:
            if dp is None and host.vjp_p is not None:
                dp = functions.product("vjp_p", lam, u, p, t)
            if dp is None:
                dp = parameter_part(functions.rhs, lam, u, p, t, wants_p)
            parts |= {nu + i: x for i, x in enumerate(dp)}
        if n in self.wanted:
            dt = functions.product("vjp_t", lam, u, p, t)[0] if host.vjp_t is not None else None
            parts[n] = time_part(functions.rhs, lam, u, p, t, host.batched) if dt is None else dt
        return [parts[i] for i in self.wanted]
