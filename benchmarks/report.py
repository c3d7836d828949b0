"""The table of goals, as rows for a terminal, for JSON and for the picture."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from comparison import Goal, Problem
from measure import Figures

PACKAGES = ("hybridax", "jax", "jaxlib", "diffrax", "gradsolve", "torch", "torchdiffeq", "numpy", "optax")
SCALE = {"memory": 1e-6, "compile": 1.0}  # megabytes, seconds; else milliseconds


def compare(problem: Problem, figures: list[Figures]) -> list[dict[str, Any]]:
    """One row for each goal of the problem."""
    by_key = {f.entry.key: f for f in figures}
    return [_row(problem, goal, by_key[goal.ours], by_key[goal.peer]) for goal in problem.goals]


def unmeasured(problem: Problem, why: str) -> list[dict[str, Any]]:
    """Rows of a problem that could not be measured."""
    return compare(problem, [Figures(entry, why) for entry in problem.entries])


def _row(problem: Problem, goal: Goal, ours: Figures, peer: Figures) -> dict[str, Any]:
    row = dict(problem=problem.name, quantity=goal.quantity, method=ours.entry.method, goal=goal.ratio)
    row |= dict(peer=" ".join(peer.entry.key), note=peer.entry.note, distance=peer.distance, status="measured")
    for f in (ours, peer):
        if f.status != "measured":
            return row | dict(status=f.status, met=None)
    if goal.quantity == "overhead":
        a, b = np.array(ours.seconds["forward"]), np.array(ours.seconds["gradient"])
        row["peer"] = "its own forward solve"
    elif goal.quantity == "memory":
        if ours.size is None or peer.size is None:
            return row | dict(status="memory unknown on this device", met=None)
        a, b = np.array([ours.size]), np.array([peer.size])
    else:
        a, b = np.array(ours.seconds[goal.quantity]), np.array(peer.seconds[goal.quantity])
    ratios = b / a
    worse = 0.9 if goal.quantity == "overhead" else 0.1
    value = float(np.median(ratios))
    if goal.quantity == "overhead":
        a, b = b, a
    row |= dict(ours=float(np.median(a)), theirs=float(np.median(b)), rounds=len(ratios))
    row |= dict(ours_least=float(a.min()), theirs_least=float(b.min()))
    return row | dict(ratio=value, ratio_worst_decile=float(np.quantile(ratios, worse)), met=goal.met(value))


def line(row: dict[str, Any]) -> str:
    """One row of the table in the terminal."""
    sign = "<=" if row["quantity"] == "overhead" else ">="
    head = f"{row['problem']:19s} {row['quantity']:9s} {row['method']:20s} {row['peer']:34s} "
    goal = f"{sign} {row['goal']:<5.4g}"
    if row["met"] is None:
        return f"{head} {'':29s} {'':14s} {goal} {row['status']}"
    unit = {"memory": "MB", "compile": "s "}.get(row["quantity"], "ms")
    ours, theirs = (row[k] * SCALE.get(row["quantity"], 1e3) for k in ("ours", "theirs"))
    ratio = f"{row['ratio']:6.2f} ({row['ratio_worst_decile']:.2f})"
    return f"{head} {ours:10.3f} {unit} {theirs:10.3f} {unit}  {ratio:16s} {goal} {'yes' if row['met'] else 'NO'}"


HEAD = (
    f"{'problem':19s} {'quantity':9s} {'hybridax':20s} {'against':34s}  {'hybridax':>12s} {'peer':>13s}  "
    f"{'ratio (10 %)':16s} {'goal':8s} met"
)
LEGEND = (
    "ratio: the peer's figure over ours, median of interleaved rounds (10 %: the quantile on the side of the peer); "
    "overhead: our gradient over our forward solve. memory: temporaries and outputs of the compiled gradient."
)


def about(command: str) -> dict[str, Any]:
    """Versions, machine and how busy it is: the load average counts the processes that ran or waited to."""

    def of(package):
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    return dict(
        command=command,
        python=platform.python_version(),
        versions={name: of(name) for name in PACKAGES},
        devices=[f"{d.platform} {d.device_kind}" for d in jax.devices()],
        machine=platform.machine(),
        processor=_processor(),
        cores=os.cpu_count(),
        xla_flags=os.environ.get("XLA_FLAGS", ""),
        load_at_start=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = [x.split(":")[1].strip() for x in info.read_text().splitlines() if x.startswith("model name")] if info.exists() else []
    return names[0] if names else platform.processor()


def draw(rows: list[dict[str, Any]], path: Path, facts: dict[str, Any]) -> None:
    """Bars of how many times better hybridax is, with a line at each goal."""
    if "matplotlib" not in sys.modules:
        import matplotlib

        matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    panels = [("gradient", "training"), ("forward",), ("compile",), ("memory",)]
    titles = ["gradients and training: times faster", "forward solves: times faster"]
    titles += ["compiling the gradient: times faster", "memory of the gradient: times less"]
    kept = [[r for r in rows if r["quantity"] in names and r["met"] is not None] for names in panels]
    shown = [(title, part) for title, part in zip(titles, kept) if part]
    heights = [len(part) + 1.5 for _, part in shown]
    figure, axes = plt.subplots(
        len(shown), 1, figsize=(10, 0.27 * sum(heights)), height_ratios=heights, layout="constrained", squeeze=False
    )
    for ax, (title, part) in zip(axes[:, 0], shown):
        where = np.arange(len(part))[::-1]
        ratios, goals = np.array([r["ratio"] for r in part]), np.array([r["goal"] for r in part])
        colors = ["tab:blue" if r["met"] else "tab:orange" for r in part]
        low = min(0.5, 0.8 * ratios.min())
        ax.barh(where, ratios - low, left=low, color=colors, height=0.7)
        ax.vlines(goals, where - 0.45, where + 0.45, color="black", lw=2)
        for y, r in zip(where, part):
            ax.text(max(r["ratio"], r["goal"]) * 1.06, y, f"{r['ratio']:.3g}", va="center", fontsize=8)
        names = [f"{r['problem']}, {r['method'].removesuffix('Adjoint')}  vs  {r['peer'].replace('Adjoint', '')}" for r in part]
        ax.set_yticks(where, names, fontsize=8)
        ax.set(xscale="log", xlim=(low, 2 * max(ratios.max(), goals.max())), ylim=(-0.7, len(part) - 0.3))
        ax.axvline(1.0, color="gray", lw=0.8, ls=":")
        ax.set_title(title, fontsize=10, loc="left")
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(axis="x", labelsize=8)
        ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    what = f"{facts['devices'][0]}, {facts['cores']} cores, JAX {facts['versions']['jax']}, diffrax {facts['versions']['diffrax']}"
    figure.suptitle(f"hybridax against its peers (black: the goal; blue: met) - {what}", fontsize=10)
    figure.savefig(path, dpi=110)
    plt.close(figure)
