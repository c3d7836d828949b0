"""What a call to the host costs: seconds for each evaluation of a right-hand side. Run: python benchmarks/host_calls.py.

2,000 equal steps of Euler's method for two states, by `HostVJP`, by `jax.pure_callback` and in JAX; and one batch of 192
points by a host of one point and by one that is batched. Medians of 15 interleaved runs.
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np

import hybridax as hx

STEPS, POINTS, REPEATS = 2000, 192, 15
U0, P = jnp.array([1.0, 0.5]), jnp.array([0.3, 0.7])


def rhs(du, u, p, t):
    du[...] = -p * u[..., ::-1]


def vjp(lam, u, p, t):
    part = -lam * u[..., ::-1]
    return (-lam * p)[..., ::-1], part if part.ndim == 1 else part.sum(0)


def by_callback(u, p, t):
    value = lambda u, p: np.asarray(-np.asarray(p) * np.asarray(u)[::-1])  # noqa: E731
    return jax.pure_callback(value, jax.ShapeDtypeStruct(u.shape, u.dtype), u, p)


def stepping(f):
    prob = hx.ODEProblem(f, U0, (0.0, 1.0), P)
    euler = hx.Euler(adaptive=False)
    return jax.jit(lambda p: hx.solve(prob, euler, p=p, dt0=1 / STEPS, max_steps=STEPS + 2).us)


def main() -> None:
    single, batched = hx.HostVJP(rhs, vjp), hx.HostVJP(rhs, vjp, batched=True)
    states = jnp.linspace(0.0, 1.0, 2 * POINTS).reshape(POINTS, 2)
    many = lambda f: jax.jit(lambda p: jax.vmap(lambda u: f(u, p, 0.0))(states))  # noqa: E731
    programs = {
        "HostVJP": (stepping(single), STEPS),
        "jax.pure_callback": (stepping(by_callback), STEPS),
        "in JAX": (stepping(lambda u, p, t: -p * u[::-1]), STEPS),
        f"HostVJP, {POINTS} points": (many(single), POINTS),
        f"HostVJP, {POINTS} points, batched": (many(batched), POINTS),
    }
    times = {name: [] for name in programs}
    for _ in range(REPEATS + 1):
        for name, (program, _) in programs.items():
            start = time.perf_counter()
            jax.block_until_ready(program(P))
            times[name].append(time.perf_counter() - start)
    for name, (_, count) in programs.items():
        print(f"{name:30s} {1e6 * np.median(times[name][1:]) / count:8.2f} microseconds an evaluation")


if __name__ == "__main__":
    main()
