"""The problems of the benchmarks, in the order of the table: ``(name, whether in float64, function that makes it)``."""

from __future__ import annotations

from functools import partial

from .brusselator import brusselator
from .hybrid_node import hybrid_node, training
from .lorenz import lorenz
from .neural import lanes, spiral

PROBLEMS = (
    ("spiral 2-50-2", False, spiral),
    ("hybrid_node", False, hybrid_node),
    ("Lorenz x 1", True, partial(lorenz, 1)),
    ("Lorenz x 100", True, partial(lorenz, 100)),
    ("Lorenz x 1000", True, partial(lorenz, 1000)),
    ("neural ODE x 256", False, lanes),
    ("Brusselator 8x8", False, brusselator),
    ("training", False, training),
    ("spiral 2-256-256-2", False, partial(spiral, (2, 256, 256, 2))),
)
