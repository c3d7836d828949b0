"""Called outside jit, solve compiles once for each structure of its inputs; numbers are data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from counting import compilations
from methods import METHODS, TWO

import hybridax as hx


def rhs(u, p, t):
    return jnp.stack([p[0] * u[1], -p[1] * jnp.sin(u[0])])


def jump(u, p, t):
    return u * p[0]


def solve(u0=(1.0, 0.0), p=(1.0, 2.0), tspan=(0.0, 2.0), times=(0.5, 1.0), saves=(0.3, 0.5, 2.0), **options):
    prob = hx.ODEProblem(rhs, jnp.array(u0), tspan, jnp.array(p))
    return hx.solve(prob, callback=hx.PresetTimeCallback(np.array(times), jump), saveat=np.array(saves), **options)


CHANGES = {
    "tolerances": {"rtol": 1e-8, "atol": 1e-9},
    "u0": {"u0": (0.3, -2.0)},
    "parameters": {"p": (0.2, 3.0)},
    "span": {"tspan": (0.0, 2.5), "saves": (0.3, 0.5, 2.5)},
    "event times": {"times": (0.25, 0.5)},
    "save times": {"saves": (0.1, 0.5, 1.1)},
}


def warm(function):
    """Twice, so that whatever JAX compiles for itself on the way is there."""
    for _ in range(2):
        jax.block_until_ready(function())


@pytest.mark.parametrize("change", CHANGES)
def test_a_solve_with_other_numbers_compiles_nothing(change):
    warm(lambda: solve(rtol=1e-4, atol=1e-7).us)
    with compilations() as compiled:
        jax.block_until_ready(solve(**{"rtol": 1e-4, "atol": 1e-7, **CHANGES[change]}).us)
    assert compiled.count == 0


@pytest.mark.parametrize("method", TWO)
def test_an_eager_gradient_with_other_numbers_compiles_nothing(method):
    def gradient(p, tolerance):
        def loss(p):
            prob = hx.ODEProblem(rhs, jnp.array([1.0, 0.0]), (0.0, 2.0), p)
            return jnp.sum(hx.solve(prob, sensealg=METHODS[method], rtol=tolerance, atol=tolerance).us)

        return jax.grad(loss)(p)

    warm(lambda: gradient(jnp.array([1.0, 2.0]), 1e-5))
    with compilations() as compiled:
        jax.block_until_ready(gradient(jnp.array([0.7, 2.2]), 1e-6))
    assert compiled.count == 0


def test_a_new_closure_over_new_numbers_compiles_nothing():
    def solve_with(rate):
        rate = jnp.asarray(rate)
        prob = hx.ODEProblem(lambda u, p, t: -rate * u, jnp.ones(1), (0.0, 1.0))
        return hx.solve(prob).us[-1]

    warm(lambda: solve_with(1.0))
    with compilations() as compiled:
        first, second = solve_with(2.0), solve_with(3.0)
        jax.block_until_ready((first, second))
    assert compiled.count == 0
    np.testing.assert_allclose([first[0], second[0]], np.exp([-2.0, -3.0]), rtol=1e-3)


def test_another_structure_does_compile():
    warm(lambda: solve().us)
    with compilations() as compiled:
        jax.block_until_ready(solve(saves=(0.1, 0.2, 0.3, 0.4, 2.0)).us)
    assert compiled.count >= 1


def test_inside_jit_new_numbers_compile_nothing():
    run = jax.jit(lambda p, tolerance, t1: solve(p=p, rtol=tolerance, saves=(0.3, 2.0), tspan=(0.0, t1)).us)
    warm(lambda: run(jnp.array([1.0, 2.0]), 1e-4, 2.0))
    with compilations() as compiled:
        jax.block_until_ready(run(jnp.array([1.5, 2.5]), 1e-6, 2.25))
    assert compiled.count == 0


def test_a_loop_that_recompiles_is_told_so_and_keeps_a_bounded_number_of_programs(monkeypatch):
    from hybridax.adjoint import programs as entry

    monkeypatch.setattr(entry, "CACHE_SIZE", 4)

    def run(k):
        prob = hx.ODEProblem(lambda u, p, t: -float(k + 1) * u, jnp.ones(1), (0.0, 1.0))
        return hx.solve(prob, hx.Euler(adaptive=False), dt0=0.5)

    with pytest.warns(UserWarning, match="compiled"):
        for k in range(entry.RECOMPILATION_WARNING):
            run(k)
    assert len(entry._programs) <= entry.CACHE_SIZE
