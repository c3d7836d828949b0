"""Measuring one problem: entries are compiled in turn, their gradients compared, and then timed in turn.

All entries of a problem run in one process, interleaved, so that what else the machine does meets all of them. A figure is
refused, not printed, where the gradients differ by more than their tolerance allows.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Callable

import jax
import numpy as np
from comparison import Entry, Problem
from hybridax.adjoint.programs import clear_cache

NOT_INSTALLED, NO_TIME = "not installed", "no time left"


@dataclass(frozen=True)
class Effort:
    """budget: seconds of timing for one problem; rounds ``(least, most)``; compiles: how often each entry is compiled;
    trainings: how often each training runs; until: nothing is compiled after this time of `time.perf_counter`."""

    budget: float = 6.0
    rounds: tuple[int, int] = (11, 300)
    compiles: int = 2
    trainings: int = 5
    until: float = np.inf


@dataclass
class Figures:
    """What was measured of one entry. seconds: by quantity, one for each round. size: peak bytes of the gradient.

    distance: of the gradient from that of the first entry. status: ``measured``, or why not.
    """

    entry: Entry
    status: str = "measured"
    seconds: dict[str, list[float]] = field(default_factory=dict)
    size: int | None = None
    distance: float = 0.0


def measure(problem: Problem, effort: Effort) -> list[Figures]:
    figures = [Figures(entry, NOT_INSTALLED if entry.missing else "measured") for entry in problem.entries]
    present = [f for f in figures if f.status == "measured"]
    if any(f.entry.train is not None for f in present):
        _train(present, effort)
        return figures
    programs = _compile(problem, present, effort)
    present, programs = [f for f in present if f.status == "measured"], [p for p in programs if "gradient" in p]
    if present:
        _compare(present, programs, problem.params)
        _time(present, programs, problem.params, effort)
    return figures


def _compile(problem: Problem, figures: list[Figures], effort: Effort) -> list[dict[str, Callable]]:
    """``forward`` and ``gradient`` of each entry, as compiled programs.

    Forward first, so that what a library does once in a process is not part of the first compile time of a gradient.
    """
    programs: list[dict[str, Callable]] = [{} for _ in figures]
    for f, program in zip(figures, programs):
        if time.perf_counter() > effort.until:
            f.status = NO_TIME
        elif f.entry.gradient is not None:
            program["gradient"] = f.entry.gradient
        elif f.entry.forward:
            program["forward"] = jax.jit(f.entry.loss).lower(problem.params).compile()
    for _ in range(effort.compiles):
        for f, program in zip(figures, programs):
            if time.perf_counter() > effort.until and "gradient" not in program:
                f.status = NO_TIME
            if f.status == NO_TIME or f.entry.loss is None:
                continue
            jax.clear_caches()
            clear_cache()  # hybridax keeps what it has traced, as JAX does
            start = time.perf_counter()
            compiled = jax.jit(jax.grad(f.entry.loss)).lower(problem.params).compile()
            f.seconds.setdefault("compile", []).append(time.perf_counter() - start)
            program["gradient"] = compiled
            memory = compiled.memory_analysis()
            f.size = None if memory is None else memory.temp_size_in_bytes + memory.output_size_in_bytes
    return programs


def _compare(figures: list[Figures], programs: list[dict[str, Callable]], params: Any) -> None:
    first, value = _flat(programs[0]["gradient"](params)), None
    for f, program in zip(figures, programs):
        f.distance = _distance(_flat(program["gradient"](params)), first)
        if "forward" in program:
            this = np.asarray(program["forward"](params))
            value = this if value is None else value
            f.distance = max(f.distance, _distance(this, value))
        if not f.distance <= f.entry.tolerance:
            f.status = f"differs by {f.distance:.1e}"


def _flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(x, np.float64)) for x in jax.tree.leaves(tree)])


def _distance(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.linalg.norm(x - y) / np.linalg.norm(y))


def _time(figures: list[Figures], programs: list[dict[str, Callable]], params: Any, effort: Effort) -> None:
    runs = [(f, name, program[name]) for f, program in zip(figures, programs) for name in sorted(program)]

    def one_round(keep: bool) -> None:
        for f, name, run in runs:
            start = time.perf_counter()
            jax.block_until_ready(run(params))
            if keep:
                f.seconds.setdefault(name, []).append(time.perf_counter() - start)

    one_round(keep=False)
    start = time.perf_counter()
    one_round(keep=False)
    once = time.perf_counter() - start
    least, most = effort.rounds
    for _ in range(int(np.clip(effort.budget / once, least, most))):
        one_round(keep=True)


def _train(figures: list[Figures], effort: Effort) -> None:
    if time.perf_counter() > effort.until:
        for f in figures:
            f.status = NO_TIME
        return
    histories: list[Any] = [None] * len(figures)
    for _ in range(effort.trainings):
        for i, f in enumerate(figures):
            seconds, histories[i] = f.entry.train()
            f.seconds.setdefault("training", []).append(seconds)
    for f, history in zip(figures, histories):
        count = min(len(history), len(histories[0]))
        f.distance = _distance(np.asarray(history[:count]), np.asarray(histories[0][:count]))
        if not f.distance <= f.entry.tolerance:
            f.status = f"losses differ by {f.distance:.1e}"
