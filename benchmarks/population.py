"""How the cost of a population with events grows with its size. Run: python benchmarks/population.py [--lanes 100 1000].

Oral doses with saturable elimination, two states, each patient with rates of its own; 25 samples over two days, tolerance
1e-6, float64. Doses at known times, or whenever the level falls to a threshold. Milliseconds of a solve and of a gradient
(fastest of several), microseconds of a gradient for each lane, and megabytes of its temporaries.
"""

from __future__ import annotations

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

import hybridax as hx

SAMPLES = np.linspace(1.0, 48.0, 25)


def rhs(u, p, t):
    absorption, elimination, volume = p
    return jnp.stack([-absorption * u[0], absorption * u[0] - elimination * u[1] / (1 + 0.2 * u[1] / volume)])


def dose(u, p, t):
    return u.at[0].add(10.0)


SILENT = (False, False)
EVENTS = {
    "known": hx.PresetTimeCallback(np.arange(0.0, 48.0, 8.0), dose, save_positions=SILENT),
    "root": hx.ContinuousCallback(lambda u, p, t: u[1] - 3.0, None, dose, save_positions=SILENT),
}


def loss(events, p, spread):
    def one(e):
        prob = hx.ODEProblem(rhs, jnp.array([10.0, 0.0]), (0.0, 48.0), p * jnp.exp(e), callback=events, saveat=SAMPLES)
        return hx.solve(prob, rtol=1e-6, atol=1e-6, max_events=32).us[: len(SAMPLES), 1]

    return jnp.mean(jax.vmap(one)(spread) ** 2)


def fastest(run, *args, repeats=5):
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(run(*args))
        times.append(time.perf_counter() - start)
    return 1e3 * min(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, nargs="+", default=[1, 100, 1000])
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    p = jnp.array([1.0, 0.2, 2.0])
    print(f"{'events':8}{'lanes':>7}{'solve ms':>10}{'gradient ms':>13}{'us a lane':>11}{'MB':>8}")
    for name, events in EVENTS.items():
        for lanes in options.lanes:
            spread = 0.3 * jax.random.normal(jax.random.key(0), (lanes, 3))
            forward = jax.jit(lambda p, s, e=events: loss(e, p, s))
            gradient = jax.jit(jax.grad(lambda p, s, e=events: loss(e, p, s))).lower(p, spread).compile()
            memory = gradient.memory_analysis()
            size = (memory.temp_size_in_bytes + memory.output_size_in_bytes) / 1e6
            solve, grad = fastest(forward, p, spread), fastest(gradient, p, spread)
            print(f"{name:8}{lanes:7}{solve:10.1f}{grad:13.1f}{1e3 * grad / lanes:11.0f}{size:8.1f}", flush=True)


if __name__ == "__main__":
    main()
