"""What every reverse pass works with: the record, the cotangents, and lane-wise vector-Jacobian products.

Parameters. ``theta`` is the flat tuple of parameter and captured arrays; ``diff`` are the positions that are
differentiated. A cotangent ``mu`` is a pair: one array for each position in ``diff``, and the cotangent of the packed
parameters where events write them. The cotangent of an array that all lanes share is summed over lanes at once (one
matrix product), unless a vmap outside the gradient asks for every lane's own.
"""

from __future__ import annotations

from typing import Callable, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ..solvers.forward import ForwardArgs, ForwardOptions
from ..solvers.lanes import LaneContext
from ..solvers.record import Result
from ..solvers.system import LaneSystem, System

SMALL = 4  # components of a state up to which its Jacobians are formed, where they are not many lanes' together


class Cotangents(NamedTuple):
    """Cotangents of the forward results, lanes at axis 1 (``end``: axis 0)."""

    saves: Array  # (S, B, n)
    left: Array  # (E, B, n)
    right: Array  # (E, B, n)
    time: Array  # (E, B)
    end: Array  # (B, n)
    end_time: Array  # (B,)

    @property
    def finite(self) -> Array:
        """Lanes on which all of them are: NaN from a loss is NaN in its gradient, and no failure of a reverse pass."""
        rows = (self.saves, self.left, self.right, self.time[..., None])
        finite = [jnp.all(jnp.isfinite(self.end), -1), *(jnp.all(jnp.isfinite(x), (0, -1)) for x in rows)]
        return jnp.all(jnp.stack(finite), 0)


class TimeCotangents(NamedTuple):
    """Cotangents of t0 ``(B,)``, of the stops ``(K+1, B)`` and of the save times ``(S, B)``."""

    t0: Array
    stops: Array
    saves: Array


class Mu(NamedTuple):
    """Cotangent of the parameters; see the module."""

    leaves: tuple[Array, ...]
    packed: Array | None


class Reverse:
    """One reverse pass over lanes."""

    def __init__(
        self,
        system: System,
        options: ForwardOptions,
        context: LaneContext,
        args: ForwardArgs,
        theta: tuple,
        shared: tuple[bool, ...],
        result: Result,
        cotangents: Cotangents,
        diff: tuple[int, ...],
        need_times: bool,
        watch: bool = False,
        idle: Array | None = None,
    ):
        self.system, self.options, self.context = system, options, context
        self.args, self.result, self.cotangents = args, result, cotangents
        self.diff, self.need_times, self.shared = diff, need_times, shared
        self.watch = watch  # a method is to tell of its work: `Costate.info`
        self.idle = idle  # (B,), lanes that stand still, kept out of sums over lanes; see `failed_lanes`
        self.lane_system = LaneSystem(system, context, theta, shared)
        self.theta, self.lanes = tuple(theta), context.size
        self.tableau = system.tableau
        # how the differentiated leaves enter a lane-wise vjp: shared and summed, or one for each lane
        self.leaves = tuple(
            jnp.broadcast_to(theta[i], (self.lanes, *theta[i].shape)) if shared[i] and not context.total else theta[i]
            for i in diff
        )
        self.axes = tuple(None if shared[i] and context.total else 0 for i in diff)

    @property
    def components(self) -> int:
        """Components of the state, without that of a running cost."""
        return self.args.u0.shape[-1] - self.system.has_cost

    # -- parameters

    @property
    def has_mu(self) -> bool:
        """Whether there is a cotangent of parameters: of those asked for, or of those that events make from the state."""
        return bool(self.diff) or self.system.param_size is not None

    def zero_mu(self) -> Mu:
        p = self.lane_system.first_params()
        return Mu(tuple(map(jnp.zeros_like, self.leaves)), None if p is None else jnp.zeros_like(p))

    @staticmethod
    def add(a: Mu, b: Mu) -> Mu:
        return jax.tree.map(jnp.add, a, b)

    def finish_mu(self, mu: Mu) -> tuple[Array, ...]:
        """Cotangents of the leaves of theta in ``diff``, the packed parameters unpacked into theirs."""
        if mu.packed is None:
            return mu.leaves
        unpacked = self.vjp(lambda th: self.system.pack_params(th), ())[1](mu.packed)[0]
        return jax.tree.map(jnp.add, mu.leaves, unpacked.leaves)

    # -- vector-Jacobian products

    def vjp(self, function: Callable, args: tuple[Array, ...], p: Array | None = None, params: bool = True):
        """``function(theta, *args)`` on every lane, and its pullback to ``(Mu, arg cotangents)``.

        ``args`` carry lanes in front. Without ``params`` the pullback returns None for Mu.
        """
        leaves = self.leaves if params else ()
        packed = p if params else None

        def lanes_function(leaves, packed, *args):
            return self._apply(function, leaves, packed if params else p, args, 0, params)

        out, back = jax.vjp(lanes_function, leaves, packed, *args)

        def pullback(cotangent):
            bars = back(cotangent)
            return (Mu(bars[0], bars[1]) if params else None), bars[2:]

        return out, pullback

    def _apply(self, function, leaves, packed, args, axis: int, params: bool):
        """Vectorise over lanes at ``axis`` of ``args``; ``leaves`` replace theta's where ``params``."""
        theta, axes = list(self.theta), list(self.lane_system.axes)
        if params:
            for i, leaf, a in zip(self.diff, leaves, self.axes, strict=True):
                theta[i], axes[i] = leaf, a
        if packed is None:
            inner = function
        else:

            def inner(th, q, *a):
                return function(self.system.with_params(th, q), *a)

            args = (packed, *args)
        places = tuple(0 if packed is not None and i == 0 else axis for i in range(len(args)))
        if self.lanes == 1:
            single = tuple(x if a is None else x[0] for x, a in zip(theta, axes, strict=True))
            one = [jnp.squeeze(x, place) for x, place in zip(args, places, strict=True)]
            return jax.tree.map(lambda x: jnp.expand_dims(x, axis), inner(single, *one))
        return jax.vmap(inner, (tuple(axes), *places), axis)(tuple(theta), *args)

    def rhs(self, t: Array, u: Array, p: Array | None) -> Array:
        return self.lane_system.rhs(t, u, p)

    def state_vjp(self, lam: Array, u: Array, p: Array | None, t: Array) -> Array:
        """``lam' df/du`` on every lane, ``(B, n)``."""
        _, back = self.vjp(lambda th, u_, t_: self.system.rhs(u_, th, t_), (u, t), p, params=False)
        return back(lam)[1][0]

    @property
    def compact(self) -> bool:
        """Whether steps are taken one by one, and their stages by a loop: all of it is one kernel then."""
        return self.system.compact and self.lanes == 1

    @property
    def small(self) -> bool:
        """Whether Jacobians of the state, formed for many points at once, are cheaper than products one by one."""
        n, dtype = self.args.u0.shape[-1], self.system.dtype
        few = n <= SMALL and n * self.lanes <= 4 * SMALL and self.system.light is None and not self.compact
        return few and jnp.issubdtype(dtype, jnp.floating) and self.system.vectorises

    def jacobians(self, u: Array, t: Array, p: Array | None) -> Array:
        """``df/du`` at points ``u (X, B, n)``, ``t (X, B)``: ``(X, B, n, n)``, row o the derivative of component o."""
        return self.linearised(u, t, p)[0]

    def linearised(self, u: Array, t: Array, p: Array | None) -> tuple[Array, Callable[[Array], Mu]]:
        """`jacobians`, and `pull_params` at the same points, from one linearisation."""
        _, back = jax.vjp(lambda leaves, packed, u_: self._at_points(leaves, packed, u_, t), self.leaves, p, u)
        units = jnp.eye(u.shape[-1], dtype=u.dtype)
        rows = jax.vmap(lambda e: back(jnp.broadcast_to(e, u.shape))[2])(units)
        return jnp.moveaxis(rows, 0, -2), lambda lam: Mu(*back(lam)[:2])

    def _at_points(self, leaves: tuple[Array, ...], packed: Array | None, u: Array, t: Array) -> Array:
        """The right-hand side at ``u (X, B, n)``, ``t (X, B)``."""

        def one_lane(th, u_, t_):
            return jax.vmap(lambda a, b: self.system.rhs(a, th, b))(u_, t_)

        return self._apply(one_lane, leaves, packed, (u, t), 1, True)

    def pull_params(self, lam: Array, u: Array, t: Array, p: Array | None) -> Mu:
        """``sum_x lam_x' df/dp`` over points ``x``: ``lam, u (X, B, n)``, ``t (X, B)``, in one batched product."""
        return self.pull_params_each((lam,), u, t, p)[0]

    def pull_params_each(self, lams: tuple[Array, ...], u: Array, t: Array, p: Array | None) -> tuple[Mu, ...]:
        """`pull_params` for several cotangents over one linearisation."""
        _, back = jax.vjp(lambda leaves, packed: self._at_points(leaves, packed, u, t), self.leaves, p)
        return tuple(Mu(*back(lam)) for lam in lams)
