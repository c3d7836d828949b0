"""Pictures of audits. matplotlib is imported when one is drawn: it is the extra ``plot``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Sequence


def error_against_time(rows: Sequence[tuple[str, float, float]], floor: float, path: str | os.PathLike) -> Any:
    """Draw ``(name, seconds, relative error)`` as points on logarithmic axes; ``floor`` is what could be resolved."""
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("Drawing needs matplotlib: pip install 'hybridax[plot]'.") from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for name, seconds, error in rows:
        axes.loglog([1e3 * seconds], [max(error, 1e-16)], "o", label=name)
    if floor > 0:
        axes.axhline(floor, color="0.6", lw=1, ls="--", label="error of the finite differences")
    axes.set(xlabel="time of a gradient (ms)", ylabel="relative error")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize="small")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return figure
