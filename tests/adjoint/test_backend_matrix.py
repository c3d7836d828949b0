"""Every method with every backend, through jumps, with parameters in every shape, against complex steps in NumPy.

Methods, backends and jumps are crossed in full. The structure goes round with the sum of their places, so that every three
of the four (method, backend, jump, structure) meet in every combination: 60 cells, of some 1.6 s each, which is tracing and
compiling. HYBRIDAX_TEST_FULL=1 runs the product of all four, 180 cells in five minutes:

    HYBRIDAX_TEST_FULL=1 python -m pytest -n 1 tests/adjoint/test_backend_matrix.py
"""

import functools
import itertools
import os

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from methods import KINDS, METHODS

import hybridax as hx

U0, RATES = np.array([1.0, 0.7]), np.array([1.5, 1.0, 0.9, 0.8])
SPAN, SAVES = (0.0, 1.0), [0.2, 0.6, 1.0]


# ------------------------------------------------------------------ parameters: four rates (a, b, c, d)
class Rates(eqx.Module):
    prey: jax.Array
    death: jax.Array
    growth: jax.Array
    species: int = 2
    place: str = eqx.field(static=True, default="pond")


STRUCTURES = {
    "flat": (lambda xp, r: r, lambda p: p),
    "dict": (
        lambda xp, r: {"prey": r[:2], "predator": {"death": r[2], "growth": r[3]}},
        lambda p: [p["prey"][0], p["prey"][1], p["predator"]["death"], p["predator"]["growth"]],
    ),
    "module": (lambda xp, r: Rates(r[:2], r[2], r[3]), lambda p: [p.prey[0], p.prey[1], p.death, p.growth]),
}


class Model:
    """One problem in NumPy or JAX: the right-hand side, its products and its jumps, in one structure of p."""

    def __init__(self, xp, structure):
        self.xp, (self.build, self.rates) = xp, STRUCTURES[structure]
        self.type = type(self.build(np, RATES))

    def make(self, *rates):
        return self.build(self.xp, self.xp.stack(rates))

    def read(self, p):
        if self.type is not np.ndarray:
            assert type(p) is self.type and getattr(p, "species", 2) == 2 and type(getattr(p, "species", 2)) is int
        return self.rates(p)

    def rhs(self, u, p, t):
        a, b, c, d = self.read(p)
        return self.xp.stack([a * u[0] - b * u[0] * u[1] + self.xp.sin(3 * t), -c * u[1] + d * u[0] * u[1]])

    def write(self, du, u, p, t):
        du[...] = self.rhs(u, p, t)

    def vjp_u(self, lam, u, p, t):
        a, b, c, d = self.read(p)
        first = lam[0] * (a - b * u[1]) + lam[1] * d * u[1]
        return self.xp.stack([first, -lam[0] * b * u[0] + lam[1] * (d * u[0] - c)])

    def vjp_p(self, lam, u, p, t):
        self.read(p)
        return self.make(lam[0] * u[0], -lam[0] * u[0] * u[1], -lam[1] * u[1], lam[1] * u[0] * u[1])

    def jump(self, u, p, t):
        a, b, *_ = self.read(p)
        return self.xp.stack([0.9 * u[0] + 0.1 * a, u[1] + 0.05 * b * u[0] * self.xp.cos(t)])

    def rewrite(self, u, p, t):
        a, b, c, d = self.read(p)
        return self.jump(u, p, t), self.make(0.9 * a + 0.05 * self.xp.sin(u[0]), b, c * d, 1.1 * d)


JUMPS = {
    "none": lambda m: None,
    "periodic": lambda m: hx.PeriodicCallback(m.jump, 0.4, initial_affect=True),
    "writes p": lambda m: hx.PresetTimeCallback([0.3, 0.7], m.rewrite, affects_params=True),
}
BACKENDS = {
    "jax": lambda m, h: (m.rhs, hx.JaxVJP()),
    "hand-written": lambda m, h: (m.rhs, hx.HandWrittenVJP(vjp_u=m.vjp_u, vjp_p=m.vjp_p)),
    "host": lambda m, h: (hx.HostVJP(h.write, vjp_u=h.vjp_u, vjp_p=h.vjp_p), None),
    "differences": lambda m, h: (m.rhs, hx.FiniteDifferenceVJP()),
}


def weights(us):
    i, j = np.meshgrid(np.arange(us.shape[0]), np.arange(us.shape[1]), indexing="ij")
    return np.sin(1.0 + 2 * i + 3 * j)


@functools.lru_cache(maxsize=None)
def expected(jump):
    """The gradient for u0 and the four rates, laid end to end."""
    m = Model(np, "flat")
    times = {"none": [], "periodic": [0.0, 0.4, 0.8], "writes p": [0.3, 0.7]}[jump]
    affect = m.rewrite if jump == "writes p" else lambda u, p, t: (m.jump(u, p, t), p)
    jumps = [reference.Jump(t, affect, (True, True)) for t in times]

    def loss(x):
        move = lambda u, p, a, b: reference.flow(lambda v, t: m.rhs(v, p, t), u, a, b)
        us = np.stack([row.u for row in reference.rows(move, x[:2], x[2:], SPAN, SAVES, jumps)])
        return np.sum(weights(us) * us**2)

    return reference.gradient(loss, np.concatenate([U0, RATES]))


FULL = os.environ.get("HYBRIDAX_TEST_FULL", "0") != "0"
CELLS = itertools.product(*map(enumerate, (KINDS, BACKENDS, JUMPS, STRUCTURES)))
GRID = [
    pytest.param(m, b, jump, structure, id=f"{m}-{b}-{jump}-{structure}")
    for (i, m), (j, b), (k, jump), (n, structure) in CELLS
    if FULL or (i + j + k) % len(STRUCTURES) == n
]


@pytest.mark.parametrize("method, backend, jump, structure", GRID)
def test_gradient_is_that_of_the_oracle(method, backend, jump, structure):
    model = Model(jnp, structure)
    f, vjp = BACKENDS[backend](model, Model(np, structure))
    options = dict(callback=JUMPS[jump](model), saveat=np.array(SAVES), rtol=1e-11, atol=1e-11)

    def loss(u0, p):
        us = hx.solve(hx.ODEProblem(f, u0, SPAN, p), vjp=vjp, sensealg=METHODS[method], **options).us
        return jnp.sum(weights(us) * us**2)

    # the module holds an int, which stays outside jit
    arrays, rest = eqx.partition(model.build(jnp, jnp.array(RATES)), eqx.is_array)
    gradient = jax.jit(jax.grad(lambda u0, q: loss(u0, eqx.combine(q, rest)), (0, 1)))
    du, dp = gradient(jnp.array(U0), arrays)
    got = np.concatenate([du, np.stack(model.rates(dp))])
    np.testing.assert_allclose(got, expected(jump), rtol=0, atol=1e-8 * np.max(np.abs(expected(jump))))



def test_every_three_of_the_four_meet():
    axes = (KINDS, BACKENDS, JUMPS, STRUCTURES)
    for three in itertools.combinations(range(4), 3):
        met = {tuple(cell.values[axis] for axis in three) for cell in GRID}
        assert met == set(itertools.product(*(axes[axis] for axis in three)))
