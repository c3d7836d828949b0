"""The parameters' integral where no step sees what it sees: a pulse whose height, the parameter, is 0."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad

import hybridax as hx

METHODS = {"interpolating": hx.InterpolatingAdjoint(), "quadrature": hx.QuadratureAdjoint(), "backsolve": hx.BacksolveAdjoint()}
CENTRES = np.array([0.31, 0.5, 0.77, 1.4])
WIDTH = 0.03
HEAVY = np.ones((80, 80))  # more than a kernel takes


def pulse(t, centre, xp=jnp):
    return xp.exp(-(((t - centre) / WIDTH) ** 2))


def rhs(heavy, u, p, t):
    height, centre = p
    idle = jnp.sum(HEAVY @ jnp.full(80, t)) * 0 if heavy else 0.0
    return -u + height * pulse(t, centre) + idle


@functools.lru_cache(maxsize=None)
def gradient(name, heavy, way):
    """By heights of the pulses; ``way``: of one lane, or of several with heights of their own or one in common."""

    def end(height, centre):
        prob = hx.ODEProblem(functools.partial(rhs, heavy), jnp.ones(1), (0.0, 2.0), (height, centre))
        return hx.solve(prob, rtol=1e-8, atol=1e-8, max_steps=256, sensealg=METHODS[name]).us[-1, 0]

    if way == "one":
        return jax.jit(jax.grad(end))
    axes = (0 if way == "own" else None, 0)
    return jax.jit(jax.grad(lambda heights, centres: jnp.sum(jax.vmap(end, axes)(heights, centres))))


@pytest.mark.parametrize("way", ["one", "own", "shared"])
@pytest.mark.parametrize("heavy", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_a_pulse_between_the_steps(name, heavy, way):
    expected = [quad(lambda t, c=c: np.exp(t - 2) * pulse(t, c, np), 0, 2, points=[c], epsabs=1e-13)[0] for c in CENTRES]
    run = gradient(name, heavy, way)
    if way == "one":
        got = [run(0.0, c) for c in CENTRES]
    else:
        got = run(jnp.zeros(len(CENTRES)) if way == "own" else 0.0, jnp.asarray(CENTRES))
        expected = expected if way == "own" else np.sum(expected)
    np.testing.assert_allclose(got, expected, rtol=2e-7)
