"""The initial value problem ``du/dt = f(u, p, t)``, ``u(t0) = u0``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable


@dataclass(frozen=True, eq=False, repr=False)
class ODEProblem:
    """``du/dt = f(u, p, t)`` from ``u0`` over ``tspan = (t0, t1)``.

    f: called as ``f(u, p, t)``; returns ``du/dt`` in the structure, shapes and dtypes of ``u``.
    u0: initial state, any pytree of floating-point or complex arrays.
    tspan: start and end, ``t1 < t0`` integrates backwards; both may be traced.
    p: parameters, any pytree; ``f`` gets it exactly as given here. Leaves that are not inexact arrays are carried.

    Keywords of `solve` may be given here as well (``callback=...``, ``saveat=...``, ``sensealg=...``); an argument of
    ``solve`` wins over one given here.
    """

    f: Callable[[Any, Any, Any], Any]
    u0: Any
    tspan: tuple[Any, Any]
    p: Any = None
    options: dict[str, Any] = field(default_factory=dict)

    def __init__(self, f, u0, tspan, p=None, **options):
        if not callable(f):
            raise TypeError(f"ODEProblem: f must be callable as f(u, p, t); got {type(f).__name__}.")
        if not hasattr(tspan, "__len__") or len(tspan) != 2:
            raise ValueError(f"ODEProblem: tspan must be a pair (t0, t1); got {tspan!r}.")
        for name, value in dict(f=f, u0=u0, tspan=tuple(tspan), p=p, options=options).items():
            object.__setattr__(self, name, value)

    def remake(self, **changes) -> ODEProblem:
        """A copy with some of ``f, u0, tspan, p`` or options replaced."""
        own = {k: changes.pop(k, getattr(self, k)) for k in ("f", "u0", "tspan", "p")}
        return ODEProblem(**own, **{**self.options, **changes})

    def __repr__(self) -> str:
        name = getattr(self.f, "__name__", type(self.f).__name__)
        return f"ODEProblem({name}, tspan={self.tspan}, options={sorted(self.options)})"


