"""The problems of the benchmarks, for hybridax and for diffrax, as functions from parameters to a loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

import hybridax as hx


@dataclass(frozen=True)
class Problem:
    """``ours[name](p)`` and ``theirs[name](p)`` give the same loss; ``params`` is where they are evaluated."""

    name: str
    params: Any
    ours: dict[str, Callable]
    theirs: dict[str, Callable]
    x64: bool = False


def _network(sizes, key):
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        (jax.random.normal(k, (m, n)) / np.sqrt(n) * 0.5, jnp.zeros(m))
        for k, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def _apply(layers, x):
    for w, b in layers[:-1]:
        x = jnp.tanh(w @ x + b)
    w, b = layers[-1]
    return w @ x + b


def spiral(sizes=(2, 50, 2), methods=True) -> Problem:
    """The cubic spiral with a network beside it, 101 saved rows over (0, 25), some 200 steps at rtol = atol = 1e-6."""
    u0, ts = jnp.array([2.0, 0.0]), np.linspace(0.0, 25.0, 101)
    params = jax.tree.map(lambda x: 0.3 * x, _network(sizes, jax.random.key(0)))
    swirl = np.array([[-0.1, -2.0], [2.0, -0.1]], np.float32)
    f = lambda u, p, t: swirl @ u**3 + _apply(p, u)  # noqa: E731

    def ours(method):
        def loss(p):
            sol = hx.solve(hx.ODEProblem(f, u0, (0.0, 25.0), p), saveat=ts, rtol=1e-6, atol=1e-6, sensealg=method)
            return jnp.sum(sol.us**2)

        return loss

    def theirs(adjoint):
        def loss(p):
            sol = diffrax.diffeqsolve(
                diffrax.ODETerm(lambda t, u, p: f(u, p, t)),
                diffrax.Tsit5(),
                0.0,
                25.0,
                None,
                u0,
                p,
                saveat=diffrax.SaveAt(ts=jnp.asarray(ts)),
                stepsize_controller=diffrax.PIDController(rtol=1e-6, atol=1e-6),
                adjoint=adjoint,
            )
            return jnp.sum(sol.ys**2)

        return loss

    own = {"DiscreteAdjoint": ours(None)}
    peers = {"RecursiveCheckpointAdjoint": theirs(diffrax.RecursiveCheckpointAdjoint())}
    if methods:
        own |= {
            "InterpolatingAdjoint": ours(hx.InterpolatingAdjoint()),
            "QuadratureAdjoint": ours(hx.QuadratureAdjoint()),
            "BacksolveAdjoint": ours(hx.BacksolveAdjoint()),
        }
        peers["BacksolveAdjoint"] = theirs(diffrax.BacksolveAdjoint())
    return Problem("spiral " + "-".join(map(str, sizes)), params, own, peers)


def hybrid_node() -> Problem:
    """The hybrid neural ODE of examples/: eleven segments, both sides of ten jumps saved; rtol = atol = 1e-6."""
    u0 = jnp.array([2.0, 0.0, 0.0, 0.0])
    params = _network((4, 50, 2), jax.random.key(1))
    f = lambda u, p, t: jnp.concatenate([_apply(p, u), jnp.zeros(2)])  # noqa: E731
    jump = lambda u: jnp.concatenate([u[:2], -3 * u[:2]])  # noqa: E731
    callback = hx.PeriodicCallback(lambda u, p, t: jump(u), 0.1, initial_affect=True)

    def ours(p):
        sol = hx.solve(hx.ODEProblem(f, u0, (0.0, 1.0), p), callback=callback, rtol=1e-6, atol=1e-6)
        return jnp.sum(sol.us**2)

    def theirs(p):
        term = diffrax.ODETerm(lambda t, u, p: f(u, p, t))

        def segment(u, k):
            right = jump(u)
            sol = diffrax.diffeqsolve(
                term,
                diffrax.Tsit5(),
                0.1 * k,
                0.1 * (k + 1),
                None,
                right,
                p,
                stepsize_controller=diffrax.PIDController(rtol=1e-6, atol=1e-6),
            )
            left = sol.ys[-1]
            return left, jnp.stack([right, left])

        _, rows = jax.lax.scan(segment, u0, jnp.arange(10, dtype=u0.dtype))
        return jnp.sum(u0**2) + jnp.sum(rows**2)

    return Problem("hybrid_node", params, {"DiscreteAdjoint": ours}, {"RecursiveCheckpointAdjoint, scan": theirs})


def lorenz(lanes: int) -> Problem:
    """Lorenz over (0, 1) with its own parameter in every lane, float64, rtol = atol = 1e-8."""
    f = lambda u, p, t: jnp.stack(  # noqa: E731
        [10.0 * (u[1] - u[0]), p * u[0] - u[1] - u[0] * u[2], u[0] * u[1] - 8 / 3 * u[2]]
    )
    u0 = jnp.array([1.0, 0.0, 0.0])

    def one(p):
        return hx.solve(hx.ODEProblem(f, u0, (0.0, 1.0), p), rtol=1e-8, atol=1e-8, max_steps=1024).us[-1]

    def other(p):
        return diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, u, p: f(u, p, t)),
            diffrax.Tsit5(),
            0.0,
            1.0,
            None,
            u0,
            p,
            stepsize_controller=diffrax.PIDController(rtol=1e-8, atol=1e-8),
            max_steps=1024,
        ).ys[-1]

    total = lambda solve: lambda p: jnp.sum((jax.vmap(solve)(p) if lanes > 1 else solve(p[0])) ** 2)  # noqa: E731
    params = jnp.linspace(20.0, 30.0, lanes)
    own, peer = {"DiscreteAdjoint": total(one)}, {"RecursiveCheckpointAdjoint": total(other)}
    return Problem(f"Lorenz x {lanes}", params, own, peer, True)
