"""The problem as the loop sees it: flat states, flat parameters, pure functions.

`System` is what remains of a problem once the user's pytrees are packed and the user's functions are captured:
static, and free of arrays. `LaneSystem` binds it to the parameters of one solve and lifts its functions to lanes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .lanes import LaneContext
from .tableau import Tableau

Kind = Literal["known", "discrete", "continuous"]


@dataclass(frozen=True, eq=False)
class EventSpec:
    """One callback, captured.

    ``affect(u, theta, t, extra) -> (u, p)`` with ``p`` the packed parameters after the event, or None where no event
    writes parameters; ``extra`` is the previous time (discrete) or the component (continuous).
    ``condition(u, theta, t, tprev) -> (components,)``, boolean for discrete events.
    """

    kind: Kind
    affect: Callable
    affect_neg: Callable | None = None
    affect_up: bool = True
    save_left: bool = True
    save_right: bool = True
    condition: Callable | None = None
    components: int = 1
    terminate: bool = False
    reverse_only: bool = False  # the condition has a hand-written VJP, and no forward-mode derivative


@dataclass(frozen=True, eq=False)
class System:
    """Right-hand side and events over flat arrays: ``rhs(u (n,), theta, t) -> (n,)``, ``theta`` a tuple of arrays."""

    tableau: Tableau
    adaptive: bool
    rhs: Callable
    events: tuple[EventSpec, ...]
    dtype: np.dtype
    param_size: int | None  # length of the packed parameters, where an event writes them
    pack_params: Callable  # theta -> (param_size,)
    with_params: Callable  # (theta, packed) -> theta
    size: int = 0  # components of a state
    has_cost: bool = False  # the last component of the state is the integral of a running cost
    vectorises: bool = True  # the right-hand side and its derivative run over many points at once for little more
    light: Any | None = None  # the right-hand side as a jaxpr of (u, t, *theta), where all in it is small: see `components`
    compact: bool = False  # on one lane, all that a step computes fits in one native function: see `one_kernel`
    pure: bool = True  # no function of the user's has an effect, such as a print

    @property
    def tiles(self) -> bool:
        """Whether many lanes are taken in tiles, each one native function; see `solvers.tiles`.

        Not with events: what they write on each lane are loops over lanes there, slower than XLA's own, and long to compile.
        """
        return self.light is not None and self.compact and not self.events

    @property
    def rolls(self) -> bool:
        """Whether the stages of a step on one lane are a loop: there is less to compile, and little else to gain by it."""
        return self.compact and self.light is None

    @property
    def time_dtype(self) -> np.dtype:
        return np.finfo(self.dtype).dtype

    @property
    def has_state_events(self) -> bool:
        return any(e.kind != "known" for e in self.events)

    @property
    def has_roots(self) -> bool:
        return any(e.kind == "continuous" for e in self.events)


class LaneSystem:
    """A system, its parameters, and its lanes: functions here take ``t (B,)``, ``u (B, n)``.

    ``p`` is the packed parameter array ``(B, m)`` where events write parameters, else None.
    """

    def __init__(self, system: System, context: LaneContext, theta: tuple, shared: tuple[bool, ...]):
        self.system, self.lanes, self.theta = system, context.size, tuple(theta)
        self.axes = tuple(None if s else 0 for s in shared)

    def lift(self, function: Callable, *args: Array, p: Array | None = None, theta: tuple | None = None) -> Any:
        """``function(theta, *args)`` for every lane; ``args`` carry lanes in front."""
        theta = self.theta if theta is None else theta
        if p is not None:
            inner, function = function, lambda th, q, *a: inner(self.system.with_params(th, q), *a)
            args = (p, *args)
        if self.lanes == 1:
            single = tuple(x if a is None else x[0] for x, a in zip(theta, self.axes, strict=True))
            return jax.tree.map(lambda x: x[None], function(single, *(x[0] for x in args)))
        return jax.vmap(function, (self.axes, *(0,) * len(args)))(theta, *args)

    def rhs(self, t: Array, u: Array, p: Array | None = None) -> Array:
        return self.lift(lambda th, t_, u_: self.system.rhs(u_, th, t_), t, u, p=p)

    def first_params(self) -> Array | None:
        """The packed parameters at the start, ``(B, m)``; None where no event writes them."""
        if self.system.param_size is None:
            return None
        if self.lanes > 1 and all(a is None for a in self.axes):
            packed = self.system.pack_params(self.theta)
            return jnp.broadcast_to(packed, (self.lanes, *packed.shape))
        return self.lift(lambda th, _: self.system.pack_params(th), jnp.zeros(self.lanes))
