"""Case P23: equal steps converge at the order of the method, for real and for complex states."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems.case import GOLD_CASES

import hybridax as hx

I, J = np.meshgrid(np.arange(10), np.arange(10), indexing="ij")
A = 0.5 * np.sin(1.0 + 11 * I + 7 * J)
B = 0.5 * np.cos(2.0 + 5 * I + 3 * J)
GOLD = GOLD_CASES["P23"]["gold"]
END = {
    "real": np.array(GOLD["real"]["value"]),
    "complex": np.array(GOLD["complex"]["value_real"]) + 1j * np.array(GOLD["complex"]["value_imag"]),
}
MATRIX = {"real": A, "complex": A + 1j * B}


def errors(solver, kind):
    """Steps and the largest error at the end, for h = 1, 1/2, 1/4, ..."""
    u0 = jnp.asarray(np.cos(np.arange(10.0)), MATRIX[kind].dtype)
    prob = hx.ODEProblem(lambda u, p, t: p @ u, u0, (0.0, 4.0), jnp.asarray(MATRIX[kind]))

    @jax.jit
    def at_end(h):
        return hx.solve(prob, solver, dt0=h, saveat=jnp.array([4.0]), max_steps=4096).us[-1]

    steps = 2.0 ** -np.arange(0, 11)
    return steps, np.array([np.max(np.abs(at_end(h) - END[kind])) for h in steps])


@pytest.mark.parametrize("kind", END)
@pytest.mark.parametrize("solver, order", [(hx.Tsit5(adaptive=False), 5), (hx.RK4(adaptive=False), 4)], ids=["Tsit5", "RK4"])
def test_the_error_of_equal_steps_falls_with_the_order_of_the_method(solver, order, kind):
    steps, error = errors(solver, kind)
    size = np.max(np.abs(END[kind]))
    used = (error < 1e-2 * size) & (error > 1e-10 * size)
    assert used.sum() >= 3
    slope = np.polyfit(np.log2(steps[used]), np.log2(error[used]), 1)[0]
    assert abs(slope - order) < 0.9


def test_adaptive_steps_bring_the_error_down_with_the_tolerance():
    prob = hx.ODEProblem(lambda u, p, t: A @ u, jnp.cos(jnp.arange(10.0)), (0.0, 4.0))
    got = [np.max(np.abs(hx.solve(prob, rtol=r, atol=r).us[-1] - END["real"])) for r in (1e-4, 1e-7, 1e-10)]
    assert got[0] > 100 * got[1] > 1e4 * got[2]
    assert got[2] < 1e-8


def test_equal_steps_meet_an_event_with_a_shorter_one():
    prob = hx.ODEProblem(lambda u, p, t: -u, jnp.ones(1), (0.0, 1.0))
    callback = hx.PresetTimeCallback([0.25], lambda u, p, t: 2 * u, save_positions=(False, False))
    sol = hx.solve(prob, hx.Tsit5(adaptive=False), dt0=0.1, callback=callback, save_everystep=True)
    ts = np.asarray(sol.ts)[np.asarray(sol.valid)]
    np.testing.assert_allclose(ts, [0, 0.1, 0.2, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95, 1.0], atol=1e-14)
    assert int(sol.stats.rejected) == 0
