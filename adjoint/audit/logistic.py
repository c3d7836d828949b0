"""Reference problems in closed form: logistic growth with drift, through every kind of event.

    u' = rate (1 + drift t) u (1 - u / capacity),
    u(b) = K u E / (K + u (E - 1)),    E = exp(rate ((b - a) + drift (b^2 - a^2) / 2)),    u = u(a), K = capacity.

The equation depends on u, p and t, nonlinearly in each; its jumps are compositions of the flow above, and the time at which
u reaches a level solves a quadratic equation. So the exact loss is a formula, which JAX differentiates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import jax
import jax.numpy as jnp

from ...solvers.callbacks import ContinuousCallback, PeriodicCallback, PresetTimeCallback
from ...solvers.problem import ODEProblem
from ..solve import solve

END = 1.2
SAVES = (0.3, END)
CARRIED = {"count": 3, "name": "logistic", "nothing": None}


@dataclass(frozen=True)
class LogisticField:
    """The right-hand side and its derivatives by hand, in operators that NumPy and JAX share.

    ``p`` is a dict; its leaves that are not numbers to learn are carried, and ``f`` raises if they do not arrive as
    they were given.
    """

    def f(self, u, p, t):
        check_carried(p)
        return p["rate"] * (1 + p["drift"] * t) * u * (1 - u / p["capacity"])

    def vjp_u(self, lam, u, p, t):
        return lam * p["rate"] * (1 + p["drift"] * t) * (1 - 2 * u / p["capacity"])

    def vjp_p(self, lam, u, p, t):
        shape, pace = u * (1 - u / p["capacity"]), 1 + p["drift"] * t
        zeros = {k: 0 * p[k] for k in p if k not in CARRIED}
        return {
            **p,
            **zeros,
            "rate": lam * pace * shape,
            "drift": (lam * p["rate"] * t * shape).sum(),
            "capacity": (lam * p["rate"] * pace * u**2).sum() / p["capacity"] ** 2,
        }

    def vjp_t(self, lam, u, p, t):
        return (lam * p["rate"] * p["drift"] * u * (1 - u / p["capacity"])).sum()


def check_carried(p: Any) -> None:
    for key, value in CARRIED.items():
        if key not in p or type(p[key]) is not type(value) or p[key] != value:
            raise TypeError(f"p[{key!r}] must arrive as it was given, {value!r}; got {p.get(key, 'nothing')!r}.")


def start() -> tuple[Any, dict[str, Any]]:
    """u0 and p in the default precision."""
    a = jnp.asarray
    p = {
        "rate": a([0.9, 1.3]),
        "drift": a(0.3),
        "capacity": a(2.0),
        "dose": a([0.05, 0.1]),
        "boost": a(1.2),
        "level": a(0.7),
        "cut": a(0.5),
        "when": a([0.4, 0.8]),
    }
    return a([0.4, 0.7]), {k: a(v, jnp.result_type(float)) for k, v in p.items()} | CARRIED


def flow(u, p, a, b):
    """The state at time b of the solution that is u at time a."""
    growth = jnp.exp(p["rate"] * ((b - a) + p["drift"] * (b**2 - a**2) / 2))
    return p["capacity"] * u * growth / (p["capacity"] + u * (growth - 1))


@dataclass(frozen=True)
class Reference:
    """A problem and its exact loss, both functions of ``(u0, p)``; ``options`` of p for `solve`."""

    name: str
    options: Callable[[Any], dict[str, Any]]
    exact: Callable[[Any, Any], Any]
    captures: bool = False  # f and affects close over what they read, instead of taking it from p

    def loss(self, u0, p, tolerance: float, sensealg: Any = None, vjp: Any = None, f: Callable | None = None):
        """The loss through `solve`: the squares of all saved rows, and the running cost if there is one."""
        f = LogisticField().f if f is None else f
        rhs = f
        if self.captures:
            rhs = lambda u, _, t: f(u, p, t)  # noqa: E731
        prob = ODEProblem(rhs, u0, (0.0, END), None if self.captures else p, vjp=vjp)
        sol = solve(prob, sensealg=sensealg, saveat=list(SAVES), rtol=tolerance, atol=tolerance, **self.options(p))
        total = jnp.sum(jnp.where(sol.valid[:, None], sol.us, 0.0) ** 2)
        return total if sol.cost is None else total + sol.cost


def _squares(*rows):
    return sum(jnp.sum(u**2) for u in rows)


def _smooth(u0, p):
    u = flow(u0, p, 0.0, SAVES[0])
    end = flow(u, p, SAVES[0], END)
    return _squares(u, end) + end[0] - u0[0]  # the running cost is u[0]'


def _first_slope(u, p, t):
    return LogisticField().f(u, p, t)[0]


def _periodic(u0, p):
    right = [u0 + p["dose"]]
    saved = flow(right[0], p, 0.0, SAVES[0])
    left = [flow(saved, p, SAVES[0], 0.5)]
    right.append(left[0] + p["dose"])
    left.append(flow(right[1], p, 0.5, 1.0))
    right.append(left[1] + p["dose"])
    return _squares(*left, *right, saved, flow(right[2], p, 1.0, END))


def _faster(u, p, t):
    return 0.9 * u, {**p, "rate": p["rate"] * p["boost"]}


def _written(u0, p):
    saved = flow(u0, p, 0.0, SAVES[0])
    first = flow(saved, p, SAVES[0], p["when"][0])
    u, q = _faster(first, p, None)
    second = flow(u, q, p["when"][0], p["when"][1])
    v, q = _faster(second, q, None)
    return _squares(saved, first, u, second, v, flow(v, q, p["when"][1], END))


def _reached(u0, p):
    """One event: where u[0] reaches the level, u is cut."""
    k, level, drift = p["capacity"], p["level"], p["drift"]
    needed = jnp.log(level * (k - u0[0]) / (u0[0] * (k - level))) / p["rate"][0]
    when = (jnp.sqrt(1 + 2 * drift * needed) - 1) / drift
    left = flow(u0, p, 0.0, when)
    right = p["cut"] * left
    return _squares(flow(u0, p, 0.0, SAVES[0]), left, right, flow(right, p, when, END))


def _kick(amount: Callable) -> Callable:
    return lambda u, p, t: u + amount(p)


SMOOTH = Reference("smooth, with a running cost", lambda p: {"running_cost": _first_slope}, _smooth)
PERIODIC = Reference(
    "periodic jump with initial affect",
    lambda p: {"callback": PeriodicCallback(_kick(lambda q: q["dose"]), 0.5, initial_affect=True)},
    _periodic,
)
WRITTEN = Reference(
    "preset jump that writes parameters, at learned times",
    lambda p: {"callback": PresetTimeCallback(p["when"], _faster, affects_params=True)},
    _written,
)
REACHED = Reference(
    "event on the state",
    lambda p: {
        "callback": ContinuousCallback(lambda u, q, t: u[0] - q["level"], lambda u, q, t: q["cut"] * u, None),
        "max_events": 4,
    },
    _reached,
)
CAPTURED = Reference(
    "periodic jump with initial affect, captured arrays",
    lambda p: {"callback": PeriodicCallback(_kick(lambda _: p["dose"]), 0.5, initial_affect=True)},
    _periodic,
    captures=True,
)


def exact_gradient(reference: Reference, u0: Any, leaves: Any, values: Any) -> Any:
    """Gradients of the exact loss with respect to u0 and the leaves ``values`` of p."""
    return jax.grad(lambda u, v: reference.exact(u, leaves.rebuild(v)), (0, 1))(u0, values)
