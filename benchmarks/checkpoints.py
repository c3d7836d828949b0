"""Memory of a checkpointed gradient: bytes held between forward and reverse pass, and peak memory, against the budget.

Diffusion on a ring of 10^6 cells with a learned rate, 2,000 fixed steps:  u_i' = p (u_{i-1} - 2 u_i + u_{i+1}).
"""

from __future__ import annotations

import argparse
import resource
import time

import jax
import jax.numpy as jnp

import hybridax as hx

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--cells", type=int, default=10**6)
parser.add_argument("--steps", type=int, default=2000)
parser.add_argument("--memory", type=int, default=2**30, help="the budget, bytes")
parser.add_argument("--method", choices=("discrete", "interpolating"), default="discrete")
args = parser.parse_args()

METHODS = {
    "discrete": lambda: hx.DiscreteAdjoint(memory=args.memory),
    "interpolating": lambda: hx.InterpolatingAdjoint(checkpointing=True, memory=args.memory),
}


def diffusion(u, p, t):
    return p * (jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1))


def loss(u0, p):
    prob = hx.ODEProblem(diffusion, u0, (0.0, 0.1 * args.steps), p)
    solver = hx.Tsit5(adaptive=False)
    sol = hx.solve(prob, solver, dt0=0.1, max_steps=args.steps + 8, sensealg=METHODS[args.method]())
    return jnp.sum(sol.us**2)


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


u0 = jnp.sin(jnp.arange(args.cells) * (2 * jnp.pi / args.cells))
before = peak()
start = time.perf_counter()
value, pullback = jax.vjp(jax.jit(loss), u0, jnp.asarray(0.3))
jax.block_until_ready(value)
middle = time.perf_counter()
held = sum(x.nbytes for x in jax.tree.leaves(pullback) if hasattr(x, "nbytes"))
gradient = jax.block_until_ready(pullback(jnp.ones_like(value)))
end = time.perf_counter()
gib = [x / 2**30 for x in (args.steps * u0.nbytes, args.memory, held, peak() - before)]
print(f"{args.method}: {args.cells} states of {u0.dtype}, {args.steps} steps; every state: {gib[0]:.2f} GiB")
print(f"budget {gib[1]:.2f} GiB, held between the passes {gib[2]:.2f} GiB, peak above start {gib[3]:.2f} GiB")
print(f"forward {middle - start:.0f} s, reverse {end - middle:.0f} s; dL/dp = {float(gradient[1]):.6g}")
