"""Cases without events: S1 to S13 but for S13's switch, M2, V3, P1."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import hybridax as hx

from .case import GOLD_CASES, Case, Gold, end, gold_of, golds, squared_distance, total
from .oracles import lotka

U0, P, SPAN = jnp.array([1.0, 1.0]), jnp.array([1.5, 1.0, 3.0, 1.0]), (0.0, 10.0)
LOTKA = hx.ODEProblem(lotka, U0, SPAN, P)


def lotka_t(u, p, t):
    """Lotka-Volterra whose interaction grows with time."""
    x, y = u
    return jnp.stack([p[0] * x - p[1] * t * x * y, -p[2] * y + p[3] * t * x * y])


LOTKA_T = hx.ODEProblem(lotka_t, U0, SPAN, P)


def _s1() -> Case:
    losses = {"sum": squared_distance(2.0)}
    return Case("S1", LOTKA_T, losses, golds("S1", "sum"), 21, options={"saveat": 0.5})


S2_TIMES = {"{0.5, 1}": [0.5, 1.0], "{0, 0.5, 1}": [0.0, 0.5, 1.0], "{0.5, 1, 10}": [0.5, 1.0, 10.0]}


def _s2(name: str, times: list[float] | None = None) -> Case:
    times = S2_TIMES[name] if times is None else times
    losses = {"sum": squared_distance(2.0)}
    title = f"S2 {times}"
    return Case(title, LOTKA_T, losses, {"sum": gold_of("S2", name)}, len(times), options={"saveat": np.array(times)})


def _s3(name: str, **options) -> Case:
    return Case(name, LOTKA_T, {"sum": squared_distance(1.0)}, golds("S3", "sum"), 21, options=options)


def _s7() -> Case:
    return Case("S7", LOTKA, {"sum": total}, golds("S7", "sum"), 101, options={"saveat": 0.1})


def _s8(name: str, **options) -> Case:
    rows = GOLD_CASES["S8"]["rows"][name]
    losses = {"sum": lambda sol, p: jnp.sum(sol.us[-1])}
    return Case(f"S8 {name}", LOTKA, losses, golds("S8", "sum"), rows, options=options)


def _s9() -> Case:
    return Case("S9", LOTKA, {"sum": total}, golds("S9", "sum"), 6, options={"saveat": 2.3})


def _m2(title: str, **options) -> Case:
    losses = {"sum": lambda sol, p: jnp.sum(sol.us[:, 0] ** 2 + p[0])}
    return Case(title, LOTKA, losses, golds("M2", "sum"), 9, options=options)


def _matrix(u, p, t):
    q = jnp.reshape(p.T, (-1,))  # column by column
    x, y = u
    return jnp.stack(
        [
            q[0] * x - q[1] * q[50] * q[74] * x * y,
            -q[2] * q[80] * q[24] * y + jnp.sum(q[3:]) / 100 * x * y,
        ]
    )


def _v3() -> Case:
    q = np.concatenate([[1.5, 1.0, 3.0], np.ones(101)])
    gold = gold_of("V3", "sum")
    grad_p = np.ravel(np.reshape(gold.grad_p, (4, 26), order="F"))
    problem = hx.ODEProblem(_matrix, U0, SPAN, jnp.asarray(np.reshape(q, (4, 26), order="F")))
    return Case("V3", problem, {"sum": total}, {"sum": Gold(gold.loss, gold.grad_u0, grad_p)}, 101, options={"saveat": 0.1})


def _affine(u, p, t):
    a = jnp.asarray(p["a"], u.dtype)
    return jnp.stack([p["q"][0] * u[0] + p["q"][1] * u[1], a * u[0] + p["b"] * u[1]])


P1_TIMES = {
    "[0.3]": [0.3],
    "[2]": [2.0],
    "[9.5]": [9.5],
    "[1, 7]": [1.0, 7.0],
    "[0.3, 7, 9.5]": [0.3, 7.0, 9.5],
    "start and end": None,
}


def _p1(name: str) -> Case:
    p = {"a": jnp.asarray(1), "b": jnp.asarray(-0.1), "q": jnp.array([0.1, -1.0])}
    problem = hx.ODEProblem(_affine, jnp.array([0.9, 5.4]), (0.3, 9.5), p)
    gold, times = gold_of("P1", name), P1_TIMES[name]
    grad_p = np.array([gold.grad_p[2], gold.grad_p[0], gold.grad_p[1]])  # b, q in the order of the dict
    options = {"saveat": None if times is None else np.array(times)}
    gold = {"sum": Gold(gold.loss, gold.grad_u0, grad_p)}
    return Case(f"P1 {name}", problem, {"sum": total}, gold, GOLD_CASES["P1"]["rows"][name], options=options, tolerance=1e-8)


S1, S7, S9, V3 = _s1(), _s7(), _s9(), _v3()
S2 = {name: _s2(name) for name in S2_TIMES}
S2_UNSORTED = _s2("{0.5, 1, 10}", [10.0, 0.5, 1.0])
S3 = _s3("S3", saveat=0.5)
S3_AS_ARRAY = _s3("S3 as array", saveat=0.5 * np.arange(21), save_start=False, save_end=False)
S8 = {"none": _s8("none"), "[10.0]": _s8("[10.0]", saveat=np.array([10.0]))}
M2 = {
    "by number": _m2("M2 by number", saveat=1.0, save_start=False, save_end=False),
    "by array": _m2("M2 by array", saveat=np.arange(1.0, 10.0)),
}
P1 = {name: _p1(name) for name in P1_TIMES}

SMOOTH = [S1, *S2.values(), S2_UNSORTED, S3, S3_AS_ARRAY, S7, *S8.values(), S9, *M2.values(), V3]
__all__ = ["SMOOTH", "end"]
