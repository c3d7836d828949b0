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


def _row(problem: Problem, goal: Goal, ours: Figures, peer: Figures) -> dict[str, Any]:
    row = dict(problem=problem.name, quantity=goal.quantity, method=ours.entry.method, goal=goal.ratio)
    row |= dict(peer=" ".join(peer.entry.key), note=peer.entry.note, status="measured")
    row |= dict(distance=ours.distance, peer_distance=peer.distance)
    if goal.quantity == "overhead":
        row["peer"] = "its own forward solve"
    for f in (ours, peer):
        if f.status != "measured":
            return row | dict(status=f.status, met=None)
    if goal.quantity == "overhead":
        a, b = np.array(ours.seconds["forward"]), np.array(ours.seconds["gradient"])
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
    lines = info.read_text().splitlines() if info.exists() else []
    names = [x.split(":")[1].strip() for x in lines if x.startswith("model name")]
    return names[0] if names else platform.processor()


def draw(rows: list[dict[str, Any]], path: Path, facts: dict[str, Any]) -> None:
    """Bars of how many times better hybridax is, with a line at each goal."""
    if "matplotlib" not in sys.modules:
        import matplotlib

        matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    panels = {
        "gradients and training: times faster": ("gradient", "training"),
        "compiling the gradient: times faster": ("compile",),
        "forward solves: times faster": ("forward",),
        "memory of the gradient: times less": ("memory",),
    }
    kept = [[r for r in rows if r["quantity"] in names and r["met"] is not None] for names in panels.values()]
    heights = [1 + max(len(part) for part in kept[i : i + 2]) for i in (0, 2)]
    figure, axes = plt.subplots(
        2, 2, figsize=(13, 0.26 * sum(heights) + 1), height_ratios=heights, layout="constrained", squeeze=False
    )
    for ax, title, part in zip(axes.flat, panels, kept):
        _bars(ax, title, part)
    facts = f"{facts['processor']}, {facts['cores']} cores, {facts['devices'][0].split()[0]}; JAX {facts['versions']['jax']}"
    figure.suptitle(f"hybridax against its peers. Black line: the goal; blue: met. {facts}", fontsize=11)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _bars(ax, title: str, part: list[dict[str, Any]]) -> None:
    ax.set_title(title, fontsize=10, loc="left")
    if not part:
        ax.set_axis_off()
        return
    where = np.arange(len(part))[::-1]
    ratios, goals = np.array([r["ratio"] for r in part]), np.array([r["goal"] for r in part])
    ax.barh(where, ratios - 1, left=1, color=["tab:blue" if r["met"] else "tab:orange" for r in part], height=0.7)
    ax.vlines(goals, where - 0.45, where + 0.45, color="black", lw=2)
    low, high = min(0.5, ratios.min()), 1.2 * max(ratios.max(), goals.max())
    for y, ratio in zip(where, ratios):
        ax.text(high * 1.1, y, f"{ratio:.3g}", va="center", fontsize=8)
    ax.set_yticks(where, map(_name, part), fontsize=8)
    ax.set(xscale="log", xlim=(low / 1.2, high * 1.7), ylim=(-0.7, len(part) - 0.3))
    ax.axvline(1.0, color="gray", lw=0.8)
    ax.spines[["top", "right"]].set_visible(False)
    ticks = [x for x in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500) if low / 1.2 <= x <= high]
    ax.set_xticks(ticks, [f"{x:g}" for x in ticks], fontsize=8)
    ax.xaxis.minorticks_off()


def _name(row: dict[str, Any]) -> str:
    """The method where it is not the default, and the peer without what is said elsewhere."""
    method = row["method"].removesuffix("Adjoint")
    ours = row["problem"] + ("" if method in ("Discrete", "fit") else f", {method}")
    library, method = row["peer"].split(" ", 1)
    return f"{ours}  vs  {library}" + (" Backsolve" if method.startswith("Backsolve") else "")
