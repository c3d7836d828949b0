"""Roots in brackets: where bisection finds them, in far fewer evaluations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridax.solvers.root_search import past_root

jax.config.update("jax_enable_x64", True)

ROOTS = np.linspace(0.13, 0.24, 23)
SHAPES = {
    "line": lambda x, r: x - r,
    "flight": lambda x, r: (x - 0.125) * (x - r),  # zero at the start of the bracket
    "steep": lambda x, r: jnp.expm1(300 * (x - r)),
    "flat": lambda x, r: (x - r) ** 9,
    "jump": lambda x, r: jnp.where(x < r, -1.0, 1e-9),
    "undefined": lambda x, r: jnp.where(x < r, -1.0, jnp.nan),
    "infinite": lambda x, r: 1 / (x - r),
    "oscillating": lambda x, r: (x - r) + 0.002 * jnp.sin(2e3 * (x - r)),
}


def bisection(f, low, high):
    for _ in range(60):
        middle = 0.5 * (low + high)
        past = ~(f(middle) < 0)
        low, high = np.where(past, low, middle), np.where(past, middle, high)
    return high


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_finds_what_bisection_finds(shape, dtype):
    counts = []

    def f(x, count=True):
        counts.append(count)
        y = SHAPES[shape](x, jnp.asarray(ROOTS, dtype))
        return jnp.where(jnp.isnan(y), 0, y)

    low, high = jnp.full_like(ROOTS, 0.125, dtype), jnp.full_like(ROOTS, 0.25, dtype)
    with jax.disable_jit():
        found = past_root(f, low, high, jnp.ones(ROOTS.shape, bool))
    evaluations = len(counts)
    assert found.dtype == dtype and np.all((found > low) & (found <= high))
    assert not np.any(f(found) < 0)
    eps = np.finfo(dtype).eps
    if shape == "oscillating":
        # there are several roots: it is one of them
        assert np.all((f(found - 2 * eps) < 0) | (np.abs(f(found)) < 1e-4 * eps))
    elif shape != "flat":
        np.testing.assert_allclose(found, bisection(f, np.asarray(low), np.asarray(high)), rtol=0, atol=eps)
    assert evaluations <= {"line": 9, "flight": 14, "steep": 20}.get(shape, 170)


def test_a_search_that_is_off_is_not_waited_for():
    on = jnp.arange(3) != 1
    found = past_root(lambda x: x - 0.2, jnp.full(3, 0.125), jnp.array([0.25, jnp.nan, 0.25]), on)
    np.testing.assert_allclose(found[on], 0.2, atol=2e-16)
