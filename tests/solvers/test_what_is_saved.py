"""Case P26: what is saved of a smooth solve, dense output, and a span of no length."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from methods import KINDS, METHODS

import hybridax as hx

T0, T1 = 0.1, 1.1
PROB = hx.ODEProblem(lambda u, p, t: -0.5 * u, jnp.array([2.1]), (T0, T1), rtol=1e-8, atol=1e-8)


def exact(t):
    return 2.1 * np.exp(-0.5 * (np.asarray(t) - T0))


@pytest.mark.parametrize(
    "options, times",
    [
        ({}, [T0, T1]),
        ({"saveat": [0.5, 0.8]}, [0.5, 0.8]),
        ({"saveat": [0.8, 0.5]}, [0.5, 0.8]),
        ({"saveat": [0.5, 0.8], "save_start": True, "save_end": True}, [T0, 0.5, 0.8, T1]),
    ],
    ids=["ends", "times", "unsorted times", "times and ends"],
)
def test_exactly_the_asked_times_are_saved(options, times):
    sol = hx.solve(PROB, **options)
    assert sol.ts.tolist() == times
    np.testing.assert_allclose(sol.us[:, 0], exact(times), atol=1e-6)


def test_a_save_time_outside_the_span_raises_before_tracing_and_is_named():
    def never(u, p, t):
        raise AssertionError("traced")

    with pytest.raises(ValueError, match=r"1\.2"):
        hx.solve(PROB.remake(f=never), saveat=[0.5, 1.2])


def test_dense_output_is_the_solution_between_the_rows():
    sol = hx.solve(PROB, dense=True)
    np.testing.assert_allclose(sol(0.8) - sol(0.2), exact([0.8]) - exact([0.2]), atol=1e-6)
    times = np.linspace(T0, T1, 23)
    np.testing.assert_allclose(np.stack([sol(t) for t in times])[:, 0], exact(times), atol=1e-6)


def test_dense_output_equals_the_saved_rows():
    times = [0.3, 0.5, 0.77, T1]
    sol = hx.solve(PROB, saveat=times, dense=True)
    np.testing.assert_allclose(np.stack([sol(t) for t in times]), sol.us, rtol=1e-14)


def test_dense_output_gives_the_left_limit_at_an_event_and_starts_from_the_right_limit_after_it():
    callback = hx.PresetTimeCallback([0.5], lambda u, p, t: u + 1.0, save_positions=(False, False))
    sol = hx.solve(PROB, callback=callback, dense=True, saveat=[0.5, 0.5 + 1e-9])
    left = exact(0.5)
    np.testing.assert_allclose(sol.us[:, 0], [left, left + 1.0], atol=1e-6)
    np.testing.assert_allclose([sol(0.5)[0], sol(0.5 + 1e-9)[0]], [left, left + 1.0], atol=1e-6)


def test_without_dense_output_calling_the_solution_says_how_to_get_it():
    with pytest.raises(ValueError, match="dense=True"):
        hx.solve(PROB)(0.8)


@pytest.mark.parametrize("method", KINDS)
@pytest.mark.parametrize("saveat", [None, [T0]], ids=["ends", "start"])
def test_a_span_of_no_length_returns_the_start_and_its_gradient(saveat, method):
    prob = PROB.remake(tspan=(T0, T0))
    np.testing.assert_array_equal(hx.solve(prob, saveat=saveat).us, np.full_like(hx.solve(prob, saveat=saveat).us, 2.1))
    gradient = jax.grad(lambda u: hx.solve(prob, u0=u, saveat=saveat, sensealg=METHODS[method]).us[-1, 0])
    np.testing.assert_allclose(gradient(prob.u0), [1.0])


def test_save_everystep_rows_increase_and_none_is_repeated():
    sol = hx.solve(PROB, save_everystep=True)
    ts = np.asarray(sol.ts)[np.asarray(sol.valid)]
    assert np.all(np.diff(ts) > 0)
    np.testing.assert_allclose(np.asarray(sol.us)[: ts.size, 0], exact(ts), atol=1e-6)
