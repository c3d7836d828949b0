"""Callbacks: where the state jumps, and how.

An affect maps the state before an event to the state after it: ``affect(u, p, t) -> u``, or ``-> (u, p)`` with
``affects_params=True``. Every callback can save the limits on both sides of its events, ``save_positions=(left, right)``.

An affect may bring its vector-Jacobian product, ``affect_vjp(lam, u, p, t) -> (u part, p part)``: ``lam`` is the
cotangent of what the affect returns, a pair with ``affects_params=True``. An affect with a fourth argument has it there
too. A condition of a `ContinuousCallback` may bring ``condition_vjp(c_bar, u, p, t) -> (u part, p part)``. Instead of a
function, a VJP backend such as ``HandWrittenVJP(vjp_u=..., vjp_t=...)`` does as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Iterator

import numpy as np
from jax import core

from .schedule import check_many, concrete


class Callback:
    """Common part of all callbacks."""

    save_positions: tuple[bool, bool]
    affects_params: bool
    affect_vjp: Any

    def _check(self, **functions: Any) -> None:
        name = type(self).__name__
        for argument, function in functions.items():
            if not callable(function):
                raise TypeError(f"{name}: {argument} must be callable; got {type(function).__name__}.")
        for argument in ("affect_vjp", "affect_neg_vjp", "condition_vjp"):
            given = getattr(self, argument, None)
            if not (given is None or callable(given) or hasattr(given, "dress")):
                raise TypeError(
                    f"{name}: {argument} must be a function (lam, u, p, t) -> (u part, p part), or a VJP backend; "
                    f"got {type(given).__name__}."
                )
        positions = self.save_positions
        if not (isinstance(positions, (tuple, list)) and len(positions) == 2 and all(_is_bool(b) for b in positions)):
            raise ValueError(f"{name}: save_positions must be a pair of booleans (left, right); got {positions!r}.")
        object.__setattr__(self, "save_positions", (bool(positions[0]), bool(positions[1])))


def _is_bool(x: Any) -> bool:
    return isinstance(x, (bool, np.bool_))


@dataclass(frozen=True, eq=False)
class PeriodicCallback(Callback):
    """Fires at ``t0 + phase + k period``, k = 0, 1, 2, ...: multiplied, never accumulated.

    The event at t0 (with ``phase=0``) fires only with ``initial_affect``, one at the end only with ``final_affect``.
    ``period`` and ``phase`` may carry gradients, but their values must be known when ``solve`` is traced.
    """

    affect: Callable
    period: Any
    phase: Any = field(default=0.0, kw_only=True)
    initial_affect: bool = field(default=False, kw_only=True)
    final_affect: bool = field(default=False, kw_only=True)
    save_positions: tuple[bool, bool] = field(default=(True, True), kw_only=True)
    affects_params: bool = field(default=False, kw_only=True)
    affect_vjp: Any = field(default=None, kw_only=True)

    def __post_init__(self):
        self._check(affect=self.affect)
        period, phase = concrete(self.period), concrete(self.phase)
        if period is not None and not (np.ndim(period) == 0 and np.isfinite(period) and period > 0):
            raise ValueError(f"PeriodicCallback: period must be a positive number; got {self.period!r}.")
        if phase is not None and not (np.ndim(phase) == 0 and np.isfinite(phase) and phase >= 0):
            raise ValueError(f"PeriodicCallback: phase must be a number >= 0; got {self.phase!r}.")

    def event_times(self, t0: Any, t1: Any) -> Any:
        """The event times within the span, in order."""
        a, b, period, phase = (concrete(x) for x in (t0, t1, self.period, self.phase))
        if a is None or b is None or period is None or phase is None:
            raise ValueError(
                "PeriodicCallback: the number of events depends on tspan, period and phase, which are traced here. "
                "Close over concrete values, or give the times to a PresetTimeCallback."
            )
        d = 1.0 if b >= a else -1.0
        span, near = abs(float(b) - float(a)), 4 * np.finfo(float).eps * max(abs(float(a)), abs(float(b)), 1e-300)
        count = int(np.floor((span - float(phase)) / float(period) * (1 + 1e-12) + 1e-9)) + 1
        check_many("PeriodicCallback: period", count, "events")
        k = np.arange(max(count, 0))
        offset = float(phase) + k * float(period)
        near = np.maximum(near, 1e-9 * float(period))
        keep = (offset <= span + near) & (self.initial_affect | (offset > near))
        keep &= self.final_affect | (offset < span - near)
        k = k[keep]
        end = (offset[keep] >= span - near) if len(k) else np.zeros(0, bool)
        times = t0 + d * (self.phase + k * self.period)
        # the event at the end is at t1 itself, whatever the rounding of the product
        return np.where(end, b, times) if not isinstance(times, core.Tracer) else times


@dataclass(frozen=True, eq=False)
class PresetTimeCallback(Callback):
    """Fires at each of ``times`` that lies in [t0, t1], both ends included.

    ``times`` may be a traced array, and then gradients flow to it: dose times can be learned.
    """

    times: Any
    affect: Callable
    save_positions: tuple[bool, bool] = field(default=(True, True), kw_only=True)
    affects_params: bool = field(default=False, kw_only=True)
    affect_vjp: Any = field(default=None, kw_only=True)

    def __post_init__(self):
        self._check(affect=self.affect)
        known = concrete(self.times)
        if known is None:
            if np.ndim(self.times) != 1:
                raise ValueError(f"PresetTimeCallback: times must have one axis; got shape {np.shape(self.times)}.")
            return
        if known.ndim != 1 or known.dtype.kind not in "fiu":
            raise ValueError(
                f"PresetTimeCallback: times must be a sequence of numbers; got shape {known.shape}, {known.dtype}."
            )
        if not np.all(np.isfinite(known)):
            raise ValueError(f"PresetTimeCallback: times must be finite; got {known}.")
        step = np.diff(known)
        if not (np.all(step > 0) or np.all(step < 0)):
            raise ValueError(
                f"PresetTimeCallback: times must be in order, without repetition; got {known}. "
                "Events at one instant belong to separate callbacks of a CallbackSet."
            )

    def event_times(self, t0: Any, t1: Any) -> Any:
        """The times within the span; traced times are all kept, and must lie in it."""
        a, b, known = concrete(t0), concrete(t1), concrete(self.times)
        times = self.times if isinstance(self.times, core.Tracer) else np.asarray(self.times)
        if a is None or b is None or known is None:
            return times
        if len(known) > 1 and (known[1] > known[0]) != (b >= a):
            raise ValueError(
                f"PresetTimeCallback: times must be in the order of integration from {float(a)} to {float(b)}; "
                f"got {known}. Sort them."
            )
        near = 4 * np.finfo(float).eps * max(abs(float(a)), abs(float(b)))
        inside = (known >= min(a, b) - near) & (known <= max(a, b) + near)
        return times[np.flatnonzero(inside)]


@dataclass(frozen=True, eq=False)
class DiscreteCallback(Callback):
    """Tested after every accepted step; fires where ``condition(u, p, t)`` (or ``(u, p, t, tprev)``) is true.

    ``affect`` may take ``tprev``, the start of the step, as a fourth argument. Gradients pass through the affect at the
    time where it fired; that time itself depends on the steps: it is taken as a constant, and a loss that depends on it is
    refused.
    """

    condition: Callable
    affect: Callable
    terminate: bool = field(default=False, kw_only=True)
    save_positions: tuple[bool, bool] = field(default=(True, True), kw_only=True)
    affects_params: bool = field(default=False, kw_only=True)
    affect_vjp: Any = field(default=None, kw_only=True)

    def __post_init__(self):
        self._check(condition=self.condition, affect=self.affect)


SAME = object()


@dataclass(frozen=True, eq=False)
class ContinuousCallback(Callback):
    """Fires where ``condition(u, p, t)`` crosses zero: ``affect`` on upcrossings, ``affect_neg`` on downcrossings.

    ``affect_neg`` is ``affect`` unless given; None ignores that direction. A condition may return a vector; affects then
    take the index of the component that fired as their fourth argument. ``affect_neg_vjp`` belongs to an ``affect_neg`` that
    is given. ``terminate`` ends the solve at the event.
    Directions are those met along the integration, also when it runs backwards in time.
    """

    condition: Callable
    affect: Callable | None
    affect_neg: Callable | None = SAME  # type: ignore[assignment]
    terminate: bool = field(default=False, kw_only=True)
    save_positions: tuple[bool, bool] = field(default=(True, True), kw_only=True)
    affects_params: bool = field(default=False, kw_only=True)
    affect_vjp: Any = field(default=None, kw_only=True)
    affect_neg_vjp: Any = field(default=None, kw_only=True)
    condition_vjp: Any = field(default=None, kw_only=True)

    def __post_init__(self):
        if self.affect_neg is SAME:
            object.__setattr__(self, "affect_neg", self.affect)
            if self.affect_neg_vjp is None:
                object.__setattr__(self, "affect_neg_vjp", self.affect_vjp)
        given = {k: v for k, v in dict(affect=self.affect, affect_neg=self.affect_neg).items() if v is not None}
        if not given:
            raise ValueError("ContinuousCallback: affect and affect_neg are both None; nothing would ever fire.")
        self._check(condition=self.condition, **given)


@dataclass(frozen=True, eq=False, init=False)
class CallbackSet:
    """Several callbacks; events at the same instant apply in this order."""

    callbacks: tuple[Callback, ...]

    def __init__(self, *callbacks: Callback | CallbackSet):
        flat: list[Callback] = []
        for item in callbacks:
            if isinstance(item, CallbackSet):
                flat.extend(item.callbacks)
            elif isinstance(item, Callback):
                flat.append(item)
            else:
                raise TypeError(f"CallbackSet: expected callbacks; got {type(item).__name__}.")
        object.__setattr__(self, "callbacks", tuple(flat))

    def __iter__(self) -> Iterator[Callback]:
        return iter(self.callbacks)


def as_callbacks(callback: Any) -> tuple[Callback, ...]:
    """The callbacks of a ``callback=`` argument."""
    if callback is None:
        return ()
    if isinstance(callback, (tuple, list)):
        return CallbackSet(*callback).callbacks
    return CallbackSet(callback).callbacks
