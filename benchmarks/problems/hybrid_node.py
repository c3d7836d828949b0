"""The hybrid neural ODE of examples/hybrid_node.py: its gradient, and 200 steps of its training.

A jump every 0.1 from t = 0 on, both sides of the ten jumps saved, rtol = atol = 1e-6, float32. diffrax and torchdiffeq have
no events: they solve segment by segment.
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from comparison import OURS, Entry, Goal, Problem, against, installed

import hybridax as hx

from . import with_diffrax as peer
from .networks import apply, network

TOLERANCE, RATE, STEPS = 1e-6, 0.0025, 200
SEGMENTS, PERIOD = 10, 0.1
TORCH_STEPS = 10  # of the 200, for it is slow; the time of one step is the same throughout
U0 = np.array([2.0, 0.0, 0.0, 0.0], np.float32)


def jump(u):
    return jnp.concatenate([u[:2], -3 * u[:2]])


def rhs(u, p, t):
    return jnp.concatenate([apply(p, u), jnp.zeros(2, u.dtype)])


def truth(u, p, t):
    return jnp.stack([u[0] + u[1] + u[2], u[0] + u[1] + u[3], jnp.zeros_like(u[0]), jnp.zeros_like(u[0])])


def our_rows(f, p):
    """``(21, 4)``: the limits on both sides of the ten jumps, and the end."""
    callback = hx.PeriodicCallback(lambda u, p, t: jump(u), PERIOD, initial_affect=True)
    prob = hx.ODEProblem(f, jnp.asarray(U0), (0.0, 1.0), p)
    return hx.solve(prob, callback=callback, rtol=TOLERANCE, atol=TOLERANCE).us


def their_rows(f, p):
    """The same rows by diffrax, the segments in a scan."""

    def segment(left, k):
        right = jump(left)
        end = peer.rows(f, right, PERIOD * k, PERIOD * (k + 1), p, TOLERANCE)[-1]
        return end, jnp.stack([right, end])

    _, rows = jax.lax.scan(segment, jnp.asarray(U0), jnp.arange(SEGMENTS, dtype=jnp.float32))
    return jnp.concatenate([jnp.asarray(U0)[None], rows.reshape(-1, 4)])


def misfit(rows, data):
    return jnp.sum((rows[:, :2] - data[:, :2]) ** 2)


def hybrid_node() -> Problem:
    params = network((4, 50, 2), jax.random.key(1))
    data = our_rows(truth, None)
    own = Entry(OURS, "DiscreteAdjoint", lambda p: misfit(our_rows(rhs, p), data))
    scan = peer.entry(lambda p: misfit(their_rows(rhs, p), data), peer.DIRECT + ", scan")
    about = "4-50-2, a jump every 0.1 and both its sides saved, tolerance 1e-6, float32"
    return Problem("hybrid_node", about, params, (own, scan), against(own, scan, 4.0))


def training() -> Problem:
    """The seconds of one Adam step, times 200; what is compiled is compiled before."""
    params = network((4, 50, 2), jax.random.key(1))
    data = our_rows(truth, None)

    def fit():
        loss, stamps = lambda p, data: misfit(our_rows(rhs, p), data), []

        def batch(k):  # called before each step; the first one compiles
            stamps.append(time.perf_counter())
            return data

        optimizer = optax.adam(RATE)
        result = hx.fit(loss, params, optimizer=optimizer, steps=STEPS, batch=batch, progress=False)
        return (stamps[-1] - stamps[1]) / (STEPS - 2), result.history

    own = Entry(OURS, "fit", train=fit, tolerance=1e-3)
    loop = Entry("diffrax", "the same loop", train=diffrax_loop(params, data) if peer.HERE else None, tolerance=1e-3)
    torch = Entry(
        "torchdiffeq",
        "the same loop, dopri5",
        train=torch_loop(params, data) if installed("torch", "torchdiffeq") else None,
        tolerance=1e-3,
        note=f"{TORCH_STEPS} steps, scaled to {STEPS}",
    )
    goals = (Goal("training", own.key, loop.key, 4.0), Goal("training", own.key, torch.key, 100.0))
    about = f"{STEPS} Adam steps of hybrid_node, without compilation"
    return Problem("training", about, params, (own, loop, torch), goals)


def diffrax_loop(params, data):
    optimizer = optax.adam(RATE)

    @jax.jit
    def step(p, state):
        value, grads = jax.value_and_grad(lambda p: misfit(their_rows(rhs, p), data))(p)
        updates, state = optimizer.update(grads, state)
        return value, optax.apply_updates(p, updates), state

    def train():
        p, state, history = params, optimizer.init(params), []
        value, p, state = step(p, state)
        history.append(float(value))
        start = time.perf_counter()
        for _ in range(STEPS - 1):
            value, p, state = step(p, state)
            history.append(float(value))
        return (time.perf_counter() - start) / (STEPS - 1), history

    return train


def torch_loop(params, data):
    """Backpropagation through `odeint`, which is faster here than its `odeint_adjoint`."""
    import torch
    from torchdiffeq import odeint

    device = "cuda" if torch.cuda.is_available() else "cpu"
    tensor = lambda x: torch.tensor(np.asarray(x), device=device)  # noqa: E731
    target, times, zeros = tensor(data), tensor(np.array([0.0, PERIOD], np.float32)), torch.zeros(2, device=device)

    def train():
        (w1, b1), (w2, b2) = leaves = [tuple(tensor(x).requires_grad_() for x in layer) for layer in params]
        optimizer = torch.optim.Adam([x for layer in leaves for x in layer], RATE)
        f = lambda t, u: torch.cat([w2 @ torch.tanh(w1 @ u + b1) + b2, zeros])  # noqa: E731

        def step():
            optimizer.zero_grad()
            left, rows = tensor(U0), [tensor(U0)]
            for _ in range(SEGMENTS):
                right = torch.cat([left[:2], -3 * left[:2]])
                left = odeint(f, right, times, rtol=TOLERANCE, atol=TOLERANCE, method="dopri5")[-1]
                rows += [right, left]
            value = torch.sum((torch.stack(rows)[:, :2] - target[:, :2]) ** 2)
            value.backward()
            optimizer.step()
            return value.item()

        history = [step()]
        start = time.perf_counter()
        history += [step() for _ in range(TORCH_STEPS - 1)]
        return (time.perf_counter() - start) / (TORCH_STEPS - 1), history

    return train
