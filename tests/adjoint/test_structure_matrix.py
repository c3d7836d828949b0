"""One problem whose u0 and p hold every kind of leaf and container: functions see the user's own types, everywhere.

    x' = -decay x + noise,   z' = w z,    at `when`:  x <- x + gain,  z <- shift z

has a closed form, which gives the gradient of every leaf.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from methods import METHODS
from problems.case import relative_error

import hybridax as hx

END = 1.0


@functools.partial(jax.tree_util.register_dataclass, data_fields=["decay", "shift"], meta_fields=["label"])
@dataclasses.dataclass
class Rates:
    decay: Any
    shift: Any
    label: str


class Settings(eqx.Module):
    gain: Any
    count: int
    on: bool
    name: str = eqx.field(static=True, default="settings")


class Pair(NamedTuple):
    first: Any
    second: Any


@functools.partial(jax.tree_util.register_dataclass, data_fields=["x", "rest"], meta_fields=["units"])
@dataclasses.dataclass
class State:
    x: Any
    rest: Any
    units: str


U0 = State(jnp.array([1.0, -0.5]), Pair({"z": jnp.array(0.4 + 0.2j, complex)}, ((), None)), "mg")
P = {
    "rates": Rates(jnp.array(0.7), jnp.array([1.5, 0.5j], complex), "fast"),  # a complex leaf beside a real one
    "settings": Settings(jnp.array([0.3, 0.1], np.float32), 3, True),
    "pair": Pair((jnp.array(-0.2 + 1.0j, complex), [jnp.array(0.4)]), None),
    "key": jax.random.key(7),
    "modes": (np.array([1, 2]), jnp.array(False)),
    "empty": {"dict": {}, "tuple": (), "list": [[]]},
}


def check_types(u, p, t):
    assert type(u) is State and u.units == "mg" and type(u.rest) is Pair and u.rest.second == ((), None)
    assert u.x.dtype == np.float64 and u.x.shape == (2,) and u.rest.first["z"].dtype == np.complex128
    rates, settings = p["rates"], p["settings"]
    assert type(rates) is Rates and rates.label == "fast" and rates.decay.shape == () and rates.shift.dtype == np.complex128
    assert type(settings) is Settings and type(settings.count) is int and settings.count == 3 and settings.on is True
    assert settings.name == "settings" and settings.gain.dtype == np.float32
    assert type(p["pair"]) is Pair and type(p["pair"].first) is tuple and p["pair"].second is None
    assert type(p["pair"].first[1]) is list
    assert jnp.issubdtype(p["key"].dtype, jax.dtypes.prng_key) and p["key"].shape == ()
    assert [x.dtype.kind for x in p["modes"]] == ["i", "b"]
    assert p["empty"] == {"dict": {}, "tuple": (), "list": [[]]}
    assert jax.tree.structure(p) == jax.tree.structure(P) and jax.tree.structure(u) == jax.tree.structure(U0)
    assert t.shape == () and t.dtype == np.float64


seen = []


def noting(function):
    def noted(u, p, t):
        check_types(u, p, t)
        seen.append(function.__name__)
        return function(u, p, t)

    return noted


def noise(p):
    return 0.1 * jax.random.normal(p["key"], (2,))


@noting
def f(u, p, t):
    x = -p["rates"].decay * u.x + noise(p)
    return State(x, Pair({"z": p["pair"].first[0] * u.rest.first["z"]}, ((), None)), "mg")


@noting
def affect(u, p, t):
    z = p["rates"].shift[0] * u.rest.first["z"] + p["rates"].shift[1]
    return State(u.x + p["settings"].gain.astype(np.float64), Pair({"z": z}, ((), None)), "mg")


@noting
def condition(u, p, t):
    return t - p["pair"].first[1][0]


@noting
def cost(u, p, t):
    return p["rates"].decay * jnp.sum(u.x) + jnp.abs(p["pair"].first[0]) ** 2 * t


def exact(u0, p):
    """The end, and the cost: decay x = noise - x', so that the integral of decay sum(x) is a sum of differences."""
    d, w, s, n = p["rates"].decay, p["pair"].first[0], p["pair"].first[1][0], noise(p)
    gain = p["settings"].gain.astype(np.float64)
    flow = lambda x, span: (x - n / d) * jnp.exp(-d * span) + n / d
    left = flow(u0.x, s)
    end = flow(left + gain, END - s)
    z = u0.rest.first["z"] * jnp.exp(w * s.astype(complex))
    z = (p["rates"].shift[0] * z + p["rates"].shift[1]) * jnp.exp(w * (END - s).astype(complex))
    integral = END * jnp.sum(n) - jnp.sum(left - u0.x) - jnp.sum(end - left - gain) + jnp.abs(w) ** 2 * END**2 / 2
    return measure(end, z) + integral


def measure(x, z):
    return jnp.sum(x**2) + jnp.abs(z - (0.2 + 0.1j)) ** 2


def solved(method, u0, p):
    callback = hx.ContinuousCallback(condition, affect, save_positions=(False, False))
    prob = hx.ODEProblem(f, u0, (0.0, END), p, callback=callback, running_cost=cost, max_events=2, max_steps=256)
    sol = hx.solve(prob, sensealg=METHODS[method], rtol=1e-10, atol=1e-10)
    assert jax.tree.structure(sol.us) == jax.tree.structure(u0)
    return measure(sol.us.x[-1], sol.us.rest.first["z"][-1]) + sol.cost


def gradient(loss):
    moving, static = eqx.partition((U0, P), eqx.is_inexact_array)
    return jax.jit(jax.grad(lambda moving: loss(*eqx.combine(moving, static))))(moving)


@functools.lru_cache(maxsize=None)
def exact_gradient():
    return gradient(exact)


@pytest.mark.parametrize("method", ["discrete", "quadrature"])
def test_every_function_sees_the_user_s_types_and_every_leaf_gets_its_gradient(method):
    seen.clear()
    got, expected = gradient(functools.partial(solved, method)), exact_gradient()
    assert set(seen) == {"f", "affect", "condition", "cost"}
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        limit = 1e-5 if a.dtype == np.float32 else 1e-7
        assert np.any(b != 0) and relative_error(a, b) < limit, jax.tree_util.keystr(path)


def test_a_state_of_float32_and_float64_leaves_keeps_both():
    u0 = {"single": jnp.array([1.0, 0.5], np.float32), "double": jnp.array(2.0)}

    def f(u, p, t):
        assert u["single"].dtype == np.float32 and u["double"].dtype == np.float64
        return {"single": -u["single"], "double": -p * u["double"]}

    def loss(u0):
        sol = hx.solve(hx.ODEProblem(f, u0, (0.0, 1.0), jnp.array(0.5)), rtol=1e-9, atol=1e-9)
        assert sol.us["single"].dtype == np.float32 and sol.ts.dtype == np.float64
        return jnp.sum(sol.us["single"][-1]).astype(np.float64) + sol.us["double"][-1]

    bars = jax.grad(loss)(u0)
    assert bars["single"].dtype == np.float32 and bars["double"].dtype == np.float64
    np.testing.assert_allclose(bars["single"], np.exp(-1.0), rtol=1e-6)
    np.testing.assert_allclose(bars["double"], np.exp(-0.5), rtol=1e-8)


def test_a_batch_of_keys_is_mapped_and_each_solve_gets_its_own():
    keys = jax.random.split(jax.random.key(1), 3)
    prob = hx.ODEProblem(lambda u, p, t: jax.random.normal(p, (1,)), jnp.zeros(1), (0.0, 1.0), keys[0])
    ends = jax.jit(jax.vmap(lambda key: hx.solve(prob, p=key).us[-1, 0]))(keys)
    np.testing.assert_allclose(ends, [float(jax.random.normal(k, (1,))[0]) for k in keys], rtol=1e-12)
