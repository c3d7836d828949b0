"""Side by side with diffrax: forward solves, gradients, compile times. Run: make bench.

Every pair is measured in one process, interleaved; figures are medians. The table goes to the terminal and, as JSON, to
out/benchmarks.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import diffrax
import jax
import numpy as np
from problems import Problem, hybrid_node, lorenz, spiral


def compiled(function, params):
    start = time.perf_counter()
    program = jax.jit(function).lower(params).compile()
    elapsed = time.perf_counter() - start
    memory = program.memory_analysis()
    size = None if memory is None else memory.temp_size_in_bytes + memory.output_size_in_bytes
    return program, elapsed, size


def measure(problem: Problem, repeats: int) -> list[dict]:
    """One row for each library and method."""
    rows, programs = [], []
    for library, losses in (("hybridax", problem.ours), ("diffrax", problem.theirs)):
        for method, loss in losses.items():
            forward, _, _ = compiled(loss, problem.params)
            gradient, seconds, size = compiled(jax.grad(loss), problem.params)
            rows.append(dict(problem=problem.name, library=library, method=method, compile=seconds, bytes=size))
            programs.append((forward, gradient))
    times = np.full((repeats, len(rows), 2), np.nan)
    for r in range(repeats):
        for i, pair in enumerate(programs):
            for j, program in enumerate(pair):
                start = time.perf_counter()
                jax.block_until_ready(program(problem.params))
                times[r, i, j] = time.perf_counter() - start
    for row, (forward, gradient) in zip(rows, np.median(times, 0), strict=True):
        row |= dict(forward=forward, gradient=gradient)
    return rows


def show(rows: list[dict]) -> None:
    head = f"{'problem':18s} {'library':9s} {'method':34s} {'forward':>9s} {'gradient':>9s} "
    head += f"{'ratio':>6s} {'compile':>8s} {'memory':>9s}"
    print(head)
    for row in rows:
        peer = next(x for x in rows if x["problem"] == row["problem"] and x["library"] == "diffrax")
        ratio = peer["gradient"] / row["gradient"]
        size = "" if row["bytes"] is None else f"{row['bytes'] / 1e6:7.2f}MB"
        print(
            f"{row['problem']:18s} {row['library']:9s} {row['method']:34s} {row['forward'] * 1e3:7.3f}ms "
            f"{row['gradient'] * 1e3:7.3f}ms {ratio:6.2f} {row['compile']:7.2f}s {size:>9s}",
            flush=True,
        )
    print("ratio: gradient time of diffrax's first adjoint over this one's")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--accelerator", action="store_true", help="few repeats, on whatever device JAX sees")
    parser.add_argument("--only", help="problems whose name contains this")
    options = parser.parse_args()
    repeats = 7 if options.accelerator else options.repeats
    cases = [
        lambda: spiral(),
        lambda: spiral((2, 256, 256, 2), methods=not options.accelerator),
        hybrid_node,
        *(lambda n=n: lorenz(n) for n in (1, 100, 1000)),
    ]
    rows = []
    for case in cases:
        problem = case()
        if options.only and options.only not in problem.name:
            continue
        if problem.x64:
            jax.config.update("jax_enable_x64", True)
            problem = case()
        rows += measure(problem, repeats)
    show(rows)
    about = dict(jax=jax.__version__, diffrax=diffrax.__version__, device=str(jax.devices()[0]), machine=platform.machine())
    path = Path("out/benchmarks.json")
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(dict(about=about, rows=rows), indent=1))
    print(about)


if __name__ == "__main__":
    main()
