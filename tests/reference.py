"""References in NumPy, written apart from the library: the rules for saved rows, a flow of order 16, Tsit5 by hand.

Everything works on complex numbers, times included, so that a derivative is a complex step: perturb by i 1e-40, take
the imaginary part. No differences are formed, and the result is good to rounding.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Sequence

import numpy as np

STEP = 1e-40
STAGES = (2, 4, 6, 8, 10, 12, 14, 16)


# ------------------------------------------------------------------ derivatives
def slope(function: Callable[[Any], complex], x: np.ndarray, direction: np.ndarray) -> float:
    """The derivative of ``function`` at ``x`` along ``direction``, by a complex step."""
    return np.imag(function(np.asarray(x) + 1j * STEP * np.asarray(direction))) / STEP


def gradient(function: Callable[[Any], complex], x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, float)
    return np.array([slope(function, x, e) for e in np.eye(x.size)])


# ------------------------------------------------------------------ flow
def flow(rhs: Callable, u: np.ndarray, a: complex, b: complex, hmax: float = 0.1) -> np.ndarray:
    """u(b) for u' = rhs(u, t), u(a) = u, by extrapolated midpoint rules (Gragg, Bulirsch, Stoer)."""
    count = max(1, int(np.ceil(abs(np.real(b - a)) / hmax - 1e-9)))
    h = (b - a) / count
    for i in range(count):
        u = _extrapolated_step(rhs, u, a + i * h, h)
    return u


def _extrapolated_step(rhs, u, t, h):
    table, f0 = [], rhs(u, t)
    for j, n in enumerate(STAGES):
        d = h / n
        before, now = u, u + d * f0
        for m in range(1, n):
            before, now = now, before + 2 * d * rhs(now, t + m * d)
        row = [(before + now + d * rhs(now, t + h)) / 2]
        for k in range(1, j + 1):
            ratio = (n / STAGES[j - k]) ** 2
            row.append(row[k - 1] + (row[k - 1] - table[-1][k - 1]) / (ratio - 1))
        table.append(row)
    return table[-1][-1]


# ------------------------------------------------------------------ saved rows
class Jump(NamedTuple):
    """An event: ``affect(u, p, t) -> (u, p)`` at ``time``, and whether its limits are saved (left, right)."""

    time: Any
    affect: Callable
    save: tuple[bool, bool]


class Row(NamedTuple):
    time: Any
    side: int
    u: np.ndarray


def rows(move: Callable, u0, p, tspan, saves: Sequence[float], jumps: Sequence[Jump] = ()) -> list[Row]:
    """The rows that a solve must return: ``move(u, p, a, b)`` is the flow, ``jumps`` stand in the order of their set.

    A save on an event is its left limit, once; at the start the state before any event is saved, and events there add
    right limits only. Times within four units in the last place are the same. A row that an event saves moves with the
    event; one that only the save asked for stays where it was asked.
    """
    t0, t1 = tspan
    direction = 1 if np.real(t1) >= np.real(t0) else -1
    near = 4 * np.finfo(float).eps * max(abs(t0), abs(t1))
    same = lambda a, b: abs(np.real(a) - np.real(b)) <= near
    out: list[Row] = []
    u, t = np.asarray(u0), t0
    pending = sorted([*saves, *(j.time for j in jumps)], key=lambda s: direction * np.real(s))
    while pending:
        now = pending[0]
        here, saved = [j for j in jumps if same(j.time, now)], [s for s in saves if same(s, now)]
        stop = here[0].time if here else now
        if not same(stop, t0):
            u, t = move(u, p, t, stop), stop
        start = same(stop, t0)
        asked = Row(saved[0], -1, move(u, p, stop, saved[0])) if here and saved and not start else None
        u, p = _pass_instant(out, u, p, stop, here, saved, start, asked)
        pending = [s for s in pending if not same(s, now)]
    return out


def _pass_instant(out: list[Row], u, p, t, here: Sequence[Jump], saved: Sequence[float], start, asked=None):
    """Append the rows of one instant to ``out``; the state and parameters after it. ``asked``: the row of the save."""
    if not here:
        out += [Row(s, 0, u) for s in saved]
    for k, jump in enumerate(here):
        if jump.save[0] and not start:
            out.append(Row(t, -1, u))
        elif k == 0 and saved:
            out.append(asked or Row(t, -1, u))
        u, p = jump.affect(u, p, t)
        if jump.save[1]:
            out.append(Row(t, 1, u))
    return u, p


# ------------------------------------------------------------------ Tsit5 with a given sequence of steps
C = np.array([0.0, 0.161, 0.327, 0.9, 0.9800255409045097, 1.0, 1.0])
A = [
    [],
    [0.161],
    [-0.008480655492356989, 0.335480655492357],
    [2.8971530571054935, -6.359448489975075, 4.3622954328695815],
    [5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525],
    [5.86145544294642, -12.92096931784711, 8.159367898576159, -0.071584973281401, -0.028269050394068383],
    [0.09646076681806523, 0.01, 0.4798896504144996, 1.379008574103742, -3.290069515436081, 2.324710524099774],
]


def tsit5_step(f: Callable, u, p, t, h):
    """Slopes ``k`` (7) and the end of one step of Tsitouras' method."""
    k, end = [], u
    for c, row in zip(C, A, strict=True):
        end = u + h * sum((a * s for a, s in zip(row, k, strict=True)), np.zeros_like(u))
        k.append(f(end, p, t + c * h))
    return k, end


def tsit5_weights(x):
    """Weights of the slopes in the free fourth-order interpolant (Tsitouras 2011), x in [0, 1]."""
    return [
        -1.0530884977290216 * x * (x - 1.3299890189751412) * (x**2 - 1.4364028541716351 * x + 0.7139816917074209),
        0.1017 * x**2 * (x**2 - 2.1966568338249754 * x + 1.2949852507374631),
        2.490627285651252793 * x**2 * (x**2 - 2.38535645472061657 * x + 1.57803468208092486),
        -16.54810288924490272 * (x - 1.21712927295533244) * (x - 0.61620406037800089) * x**2,
        47.37952196281928122 * (x - 1.203071208372362603) * (x - 0.658047292653547382) * x**2,
        -34.87065786149660974 * (x - 1.2) * (x - 0.666666666666666667) * x**2,
        2.5 * (x - 1) * (x - 0.6) * x**2,
    ]


def replay(f: Callable, u0, p, ts: np.ndarray, saves: Sequence[float], jumps: Sequence[Jump] = ()) -> list[Row]:
    """`rows`, stepping exactly from ``ts[i]`` to ``ts[i + 1]``; saves are read off the interpolant of their step.

    Jump times and saves on them must be entries of ``ts``.
    """
    out: list[Row] = []
    at = lambda t: ([j for j in jumps if j.time == t], [s for s in saves if s == t])
    u, p = _pass_instant(out, np.asarray(u0), p, ts[0], *at(ts[0]), start=True)
    for t, end in zip(ts[:-1], ts[1:], strict=True):
        h = end - t
        k, u1 = tsit5_step(f, u, p, t, h)
        for s in sorted(s for s in saves if t < s < end):
            weights = tsit5_weights((s - t) / h)
            out.append(Row(s, 0, u + h * sum(w * slope for w, slope in zip(weights, k, strict=True))))
        u, p = _pass_instant(out, u1, p, end, *at(end), start=False)
    return out
