"""Pictures of training runs. matplotlib is imported when one is drawn: it is the extra ``plot``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Mapping


def pyplot() -> Any:
    """matplotlib.pyplot, drawing to files."""
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("Drawing needs matplotlib: pip install 'hybridax[plot]'.") from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def save(figure: Any, path: str | os.PathLike) -> None:
    """Write a figure, making the folder if it is not there."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def loss_curves(curves: Mapping[str, Any], path: str | os.PathLike | None = None, axes: Any = None) -> Any:
    """Losses over steps on a logarithmic scale, one curve for each name; returns the axes."""
    if axes is None:
        _, axes = pyplot().subplots(figsize=(6, 4), layout="constrained")
    # later curves are thinner and dashed, so that curves on top of one another can all be seen
    for i, (name, losses) in enumerate(curves.items()):
        axes.semilogy(losses, label=name, lw=max(5 - 1.2 * i, 1.0), ls="-" if i == 0 else (0, (4, 1 + i)))
    axes.set(xlabel="step", ylabel="loss")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    if path is not None:
        save(axes.figure, path)
    return axes


def tidy(*axes: Any) -> None:
    """The house style: a light grid, open frame, and a legend without one."""
    for ax in axes:
        ax.grid(alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
        if ax.get_legend_handles_labels()[0]:
            ax.legend(frameon=False)
