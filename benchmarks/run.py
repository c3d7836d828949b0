"""hybridax against its peers: one table of goals. Run: make bench, or make bench-gpu.

The same problems at the same tolerances, gradients compared before they are timed, everything in one process and
interleaved. Writes ``benchmarks/results/DEVICE.json`` and ``.png``, where DEVICE is cpu, gpu or tpu. A peer that is not
installed leaves its rows empty.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import jax
import report
from measure import Effort, measure
from problems import PROBLEMS

QUICK = Effort(budget=1.0, rounds=(3, 30), compiles=1, trainings=1)
DEADLINE = 240.0  # seconds after which --quick begins no further program, so that it ends within five minutes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repeats, and no new program after four minutes")
    parser.add_argument("--only", help="problems whose name contains this; writes no files unless --results is given")
    parser.add_argument("--results", type=Path, help="folder of the JSON and the picture")
    options = parser.parse_args()
    results = options.results or (None if options.only else Path(__file__).parent / "results")
    # products in full float32 for every library, also where a GPU would round their factors
    jax.config.update("jax_default_matmul_precision", "highest")
    facts, rows = report.about(" ".join(["python", *sys.argv])), []
    begun = time.perf_counter()
    effort = replace(QUICK, until=begun + DEADLINE) if options.quick else Effort()
    print(report.HEAD, flush=True)
    for name, x64, make in PROBLEMS:
        if options.only and options.only not in name:
            continue
        jax.config.update("jax_enable_x64", x64)
        problem = make()
        new = report.compare(problem, measure(problem, effort))
        print("\n".join(map(report.line, new)), flush=True)
        rows += new
    facts |= dict(load_at_end=os.getloadavg()[0], seconds=time.perf_counter() - begun)
    judged = [r["met"] for r in rows if r["met"] is not None]
    print(report.LEGEND)
    print(f"{sum(judged)} of {len(judged)} goals met, {len(rows) - len(judged)} not measured")
    print(json.dumps(facts))
    if results is not None:
        results.mkdir(parents=True, exist_ok=True)
        path = results / jax.default_backend()
        path.with_suffix(".json").write_text(json.dumps(dict(about=facts, rows=rows), indent=1) + "\n")
        report.draw(rows, path.with_suffix(".png"), facts)


if __name__ == "__main__":
    main()
