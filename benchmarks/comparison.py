"""What is compared: problems, the libraries that solve them, and the goals.

A *problem* is solved by several *entries*, one for each library and method; all give the same loss of the same
parameters, at the same tolerance. A *goal* compares two entries in one *quantity*.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Callable

OURS = "hybridax"


def installed(*modules: str) -> bool:
    return all(find_spec(m) is not None for m in modules)


@dataclass(frozen=True)
class Entry:
    """One library and method. Exactly one of the three functions is given, or none where the library is missing.

    loss: ``params -> scalar`` for JAX to differentiate and compile. gradient: ``params -> gradient``, run as it stands.
    train: ``() -> (seconds of one step, losses)``. tolerance: the largest relative distance of the gradient from that of
    the problem's first entry, or of the losses at the end of a training. note: what a reader must know of this entry.
    """

    library: str
    method: str
    loss: Callable | None = None
    gradient: Callable | None = None
    train: Callable | None = None
    tolerance: float = 1e-4
    forward: bool = True
    note: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.library, self.method

    @property
    def missing(self) -> bool:
        return self.loss is None and self.gradient is None and self.train is None


@dataclass(frozen=True)
class Goal:
    """``ours`` against ``peer`` (keys of entries): the median of the peer's quantity over ours is at least ``ratio``.

    quantity: gradient, forward or training (seconds), compile (seconds), memory (bytes); or overhead, the seconds of our
    gradient over those of our forward solve, which are at most ``ratio``.
    """

    quantity: str
    ours: tuple[str, str]
    peer: tuple[str, str]
    ratio: float

    def met(self, value: float) -> bool:
        return value <= self.ratio if self.quantity == "overhead" else value >= self.ratio


@dataclass(frozen=True)
class Problem:
    """The first entry is ours; ``params`` is where all are evaluated; ``about`` says what is solved."""

    name: str
    about: str
    params: Any
    entries: tuple[Entry, ...]
    goals: tuple[Goal, ...]


def against(ours: Entry, peer: Entry, gradient: float, *, forward: bool = True) -> tuple[Goal, ...]:
    """Gradient faster by ``gradient``, compiled in half the time, no more memory, and a forward solve as fast."""
    goals = [Goal("gradient", ours.key, peer.key, gradient)]
    goals += [Goal("forward", ours.key, peer.key, 1.0)] if forward else []
    return (*goals, Goal("compile", ours.key, peer.key, 2.0), Goal("memory", ours.key, peer.key, 1.0))
