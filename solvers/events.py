"""Events on the state: roots of a condition inside a step.

After every accepted step the conditions of all continuous callbacks, laid end to end as C components, are evaluated at
points along the step's continuous extension, so that a double crossing is seen. The earliest change of sign that has
an affect is refined on the extension (`root_search`) to the last few units in the last place of time; the step is cut
there, and components that cross at the same instant fire together.

A step that starts at zero (at t0, or where an event was just handled) takes its first sign from the time derivative
``D = c_t + c_u f``: the condition cannot fire again before it has left zero, and a short flight after a bounce is
not missed. "At zero" means closer in time, ``|c / D|``, than the resolution of time.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .root_search import past_root
from .runge_kutta import Step, extension_of, interpolant_slope, interpolate
from .system import EventSpec, LaneSystem
from .undefined import undefined

SAMPLES = 8  # points of a step at which conditions are tested

#: An event grazes if |D| is below this many square roots of a unit in the last place of what it is a step before. Closer
#: to a tangency, the rounding of the event's time alone changes D, and with it the gradient, by more than a percent.
GRAZING = 16


class RootState(NamedTuple):
    """``sign (B, C)``: side of zero on which a component was last seen, valid unless ``fresh (B,)``.

    ``direction (B, C)``: +1, -1 for the components that fired at the end of the last step, else 0.
    ``invalid (B,)``: a condition was NaN in the last step, before anything fired.
    """

    sign: Array
    fresh: Array
    direction: Array
    invalid: Array


class Conditions:
    """All conditions of a system as one function with C components."""

    def __init__(self, system: LaneSystem):
        self.system = system
        self.specs = [s for s in system.system.events if s.kind == "continuous"]
        self.count = sum(s.components for s in self.specs)
        sizes = [s.components for s in self.specs]
        self.offsets = dict(zip(map(id, self.specs), np.cumsum([0, *sizes]).tolist(), strict=False))
        self.up = np.array([s.affect_up for s in self.specs for _ in range(s.components)])
        self.down = np.array([s.affect_neg is not None for s in self.specs for _ in range(s.components)])

    def _values(self, theta, u, t):
        return jnp.concatenate([s.condition(u, theta, t, t) for s in self.specs])  # type: ignore[misc]

    def __call__(self, u: Array, t: Array, p: Array | None) -> Array:
        """Values ``(B, C)`` at one point of each lane."""
        return self.system.lift(self._values, u, t, p=p)

    def slope(self, u: Array, t: Array, du: Array, p: Array | None) -> tuple[Array, Array]:
        """Values and time derivatives ``(B, C)`` along the velocity ``du``."""

        def along(theta, u_, t_, du_):
            if any(s.reverse_only for s in self.specs):
                values, back = jax.vjp(lambda v, s: self._values(theta, v, s), u_, t_)
                c_u, c_t = jax.vmap(back)(jnp.eye(self.count, dtype=values.dtype))
                return values, (c_u @ du_).real.astype(values.dtype) + c_t
            return jax.jvp(lambda v, s: self._values(theta, v, s), (u_, t_), (du_, jnp.ones_like(t_)))

        return self.system.lift(along, u, t, du, p=p)

    def fires(self, roots: RootState, spec: EventSpec, component: int, up: bool) -> Array:
        return roots.direction[:, self.offsets[id(spec)] + component] == (1 if up else -1)

    def first(self, lanes: int) -> RootState:
        none = jnp.zeros((lanes, self.count), np.int32)
        return RootState(none, jnp.ones(lanes, bool), none, jnp.zeros(lanes, bool))


def time_resolution(t0: Array, t1: Array) -> Array:
    """Two instants closer than this are the same.

    The factor covers the rounding of the continuous extension, whose weights cancel: a state placed on a root by
    bisection may lie some dozens of units in the last place on either side of it.
    """
    return 512 * np.finfo(t0.dtype).eps * jnp.maximum(jnp.abs(t0), jnp.abs(t1))


def find_roots(
    conditions: Conditions, roots: RootState, step: Step, p: Array | None, accepted: Array, resolution: Array
) -> tuple[RootState, Array, Array]:
    """Search one step: ``(state, fired (B,), theta (B,))``, theta = 1 where nothing fires."""
    real = step.t.dtype
    # the search has no derivative; the time that it finds has one: see `_differentiable`
    moving, moving_p = step, p
    step, p = lax.stop_gradient((step, p))

    state = extension_of(conditions.system.system.tableau, step)

    def at(theta: Array) -> Array:
        return conditions(state(theta), step.t + theta * step.h, p)

    def first_sign(_):
        value, slope = conditions.slope(step.u, step.t, step.k[:, 0], p)
        slope = slope * jnp.sign(step.h)[:, None]
        zero = jnp.abs(value) <= jnp.abs(slope) * resolution[:, None]
        unknown = jnp.any(jnp.isnan(value), 1)
        return side(jnp.where(zero, slope, value)), unknown

    def start_afresh(sign):
        first, unknown = first_sign(None)
        return jnp.where(roots.fresh[:, None], first, sign), roots.fresh & unknown

    sign, unknown = lax.cond(
        jnp.any(roots.fresh & accepted),
        start_afresh,
        lambda s: (s, jnp.zeros_like(accepted)),
        roots.sign,
    )
    grid = np.arange(1, SAMPLES + 1).astype(real) / SAMPLES
    seen, bracket = sign, jnp.zeros_like(sign)
    samples = jax.vmap(at)(jnp.broadcast_to(grid[:, None], (SAMPLES, *step.t.shape)))
    for j, values in enumerate(samples, 1):
        # what lies behind the first NaN is not looked at, nor is it missed if an event cuts the step before
        unknown = unknown | (jnp.any(jnp.isnan(values), 1) & ~jnp.any(bracket != 0, 1))
        now = jnp.where(unknown[:, None], seen, side(values))
        crossed = (seen != 0) & (now != seen)
        wanted = crossed & jnp.where(seen < 0, conditions.up, conditions.down) & (bracket == 0)
        bracket = jnp.where(wanted, j * -seen, bracket)
        seen = jnp.where(now != 0, now, seen)
    bracket = jnp.where(accepted[:, None], bracket, 0)
    found = bracket != 0

    def refine(_):
        hi = jnp.abs(bracket).astype(real) / SAMPLES
        lo = hi - np.asarray(1 / SAMPLES, real)
        rising = jnp.sign(bracket).astype(real)

        def values_at(theta: Array) -> Array:
            values = jnp.stack([at(theta[:, c])[:, c] for c in range(conditions.count)], 1)
            # negative before the root; what is not a number lies behind it
            return lax.stop_gradient(jnp.where(jnp.isnan(values), 0.0, values) * rising)

        hi = jnp.where(found, past_root(values_at, lo, hi, found), 2.0)
        theta = jnp.min(hi, 1)
        near = jnp.abs(hi - theta[:, None]) * jnp.abs(step.h)[:, None] <= resolution[:, None]
        fires = found & near
        return jnp.where(fires, jnp.sign(bracket), 0), jnp.where(jnp.any(fires, 1), theta, 1.0)

    direction, theta = lax.cond(
        jnp.any(found),
        refine,
        lambda _: (jnp.zeros_like(bracket), jnp.ones_like(step.t)),
        None,
    )
    fired = jnp.any(direction != 0, 1)
    theta = jnp.where(fired, _differentiable(conditions, moving, moving_p, direction, theta), theta)
    sign = jnp.where(accepted[:, None], seen, sign)
    return RootState(sign, (roots.fresh & ~accepted) | fired, direction, unknown & accepted & ~fired), fired, theta


def side(values: Array) -> Array:
    """The sign as an integer; 0 for NaN."""
    return jnp.sign(jnp.where(jnp.isnan(values), 0.0, values)).astype(np.int32)


def _differentiable(conditions: Conditions, step: Step, p: Array | None, direction: Array, theta: Array) -> Array:
    """theta again, with the derivative of the implicit function: ``d theta = -dc / (h D)``."""
    tableau = conditions.system.system.tableau
    u = interpolate(tableau, step.u, step.h, step.k, theta)
    du = interpolant_slope(tableau, step.k, theta)
    value, slope = conditions.slope(u, step.t + theta * step.h, du, p)
    start = conditions(*lax.stop_gradient((step.u, step.t, p)))
    first = jnp.argmax(direction != 0, 1)[:, None]
    value = jnp.take_along_axis(value, first, 1)[:, 0]
    slope = lax.stop_gradient(jnp.take_along_axis(slope, first, 1)[:, 0] * step.h)
    start = jnp.take_along_axis(start, first, 1)[:, 0]
    grazing = jnp.abs(slope) <= GRAZING * np.sqrt(np.finfo(slope.dtype).eps) * jnp.abs(start)
    # lanes without an event have no time whose derivative could be missing
    grazing = grazing & jnp.any(direction != 0, 1)
    moved = (value - lax.stop_gradient(value)) / jnp.where(slope == 0, 1.0, slope)
    return theta - undefined(moved, grazing)
