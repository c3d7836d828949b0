"""Lorenz over (0, 1) with its own parameter in every lane, float64, rtol = atol = 1e-8."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from comparison import OURS, Entry, Goal, Problem, against, installed

import hybridax as hx

from . import with_diffrax as peer

TOLERANCE, MAX_STEPS = 1e-8, 1024
GOALS = {1: 8.0, 100: 6.0, 1000: 5.0}


def f(u, p, t):
    return jnp.stack([10.0 * (u[1] - u[0]), p * u[0] - u[1] - u[0] * u[2], u[0] * u[1] - 8 / 3 * u[2]])


def lorenz(lanes: int) -> Problem:
    u0 = jnp.array([1.0, 0.0, 0.0])

    def one(p):
        options = dict(rtol=TOLERANCE, atol=TOLERANCE, max_steps=MAX_STEPS)
        return hx.solve(hx.ODEProblem(f, u0, (0.0, 1.0), p), **options).us[-1]

    def other(p):
        return peer.rows(f, u0, 0.0, 1.0, p, TOLERANCE, max_steps=MAX_STEPS)[-1]

    total = lambda solve: lambda p: jnp.sum((jax.vmap(solve)(p) if lanes > 1 else solve(p[0])) ** 2)  # noqa: E731
    own = Entry(OURS, "DiscreteAdjoint", total(one))
    direct = peer.entry(total(other), tolerance=1e-6)
    replay = Entry(
        "gradsolve",
        "record and replay",
        gradient=record_and_replay(lanes) if installed("gradsolve") else None,
        tolerance=1e-6,
        note="records with its compiled recorder in every gradient; the replay is compiled once",
    )
    goals = (*against(own, direct, GOALS[lanes]), Goal("gradient", own.key, replay.key, 1.3))
    about = f"Lorenz over (0, 1), {lanes} lane{'s' * (lanes > 1)} with their own parameter, tolerance 1e-8, float64"
    return Problem(f"Lorenz x {lanes}", about, jnp.linspace(20.0, 30.0, lanes), (own, direct, replay), goals)


def record_and_replay(lanes: int):
    """``p -> gradient``; to be made while float64 is on, for importing gradsolve turns it on.

    `gradsolve.grad_closure` would compile its replay anew in every call; this is what it runs, with the
    recorded steps as an argument of one compiled program, and with the faster of its two recorders."""
    from gradsolve.solvers.tsit5_replay import record_tsit5_jax
    from gradsolve.warp.warp_replay import replay_solve_jax

    class Lorenz:
        name, dim, t0, t1, is_stiff = "lorenz_of_the_benchmarks", 3, 0.0, 1.0, False

        def f_jax(self, t, y, p):
            return f(y, p[0], t)

    problem = Lorenz()
    starts = np.tile([1.0, 0.0, 0.0], (lanes, 1))
    loss = lambda p, steps: jnp.sum(replay_solve_jax(problem, starts, p[:, None], steps) ** 2)  # noqa: E731
    replay = jax.jit(jax.grad(loss))

    def gradient(p):
        tolerances = dict(rtol=TOLERANCE, atol=TOLERANCE, max_steps=MAX_STEPS)
        _, steps, _ = record_tsit5_jax(problem.f_jax, starts, np.asarray(p)[:, None], 0.0, 1.0, recorder="jax", **tolerances)
        return replay(p, steps)

    return gradient
