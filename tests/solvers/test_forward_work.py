"""The work of a forward solve: evaluations of the right-hand side, attempts, and what save times and events add."""

import jax.numpy as jnp
import numpy as np
import pytest
from counting import Counter

import hybridax as hx

STAGES = 6  # of Tsit5 after its first-same-as-last slope


def solve(callback=None, f=None, **options):
    def spiral(u, p, t):
        return jnp.stack([-0.1 * u[0] - 3.0 * u[1] + jnp.sin(t), 3.0 * u[0] - 0.1 * u[1]])

    prob = hx.ODEProblem(spiral if f is None else f, jnp.array([2.0, 0.0]), (0.0, 4.0))
    return hx.solve(prob, callback=callback, **options)


def jump(u, p, t):
    return u + 1.0


def attempts(sol):
    return int(sol.stats.accepted) + int(sol.stats.rejected)


EVENTS = {
    "none": (None, 0),
    "inside": (hx.PresetTimeCallback([1.0, 2.5], jump), 2),
    "start and end": (hx.PresetTimeCallback([0.0, 4.0], jump), 0),
    "two at one instant": (hx.CallbackSet(hx.PresetTimeCallback([1.0], jump), hx.PresetTimeCallback([1.0], jump)), 1),
    "periodic": (hx.PeriodicCallback(jump, 0.5, initial_affect=True, final_affect=True), 7),
}


@pytest.mark.parametrize("rtol", [1e-3, 1e-9], ids="rtol={}".format)
@pytest.mark.parametrize("callback, restarts", EVENTS.values(), ids=EVENTS)
def test_evaluations_are_six_an_attempt_and_one_for_each_instant_of_events_inside(callback, restarts, rtol):
    sol = solve(callback, rtol=rtol, atol=rtol)
    start, first_step = 1, 1
    assert int(sol.stats.evaluations) == STAGES * attempts(sol) + start + first_step + restarts


def test_a_given_first_step_costs_no_evaluation():
    sol = solve(dt0=0.01)
    assert int(sol.stats.evaluations) == STAGES * attempts(sol) + 1


def test_rejections_count_as_attempts():
    def bump(u, p, t):
        return jnp.stack([jnp.tanh(1e3 * (t - 2.0)), -u[1]])

    sol = solve(f=bump, rtol=1e-8, atol=1e-8)
    assert int(sol.stats.rejected) > 0
    assert int(sol.stats.evaluations) == STAGES * attempts(sol) + 2


@pytest.mark.parametrize("callback", [c for c, _ in EVENTS.values()], ids=EVENTS)
def test_reported_evaluations_are_those_that_ran(callback):
    counter = Counter(2)

    def counted(u, p, t):
        return counter.tick(jnp.stack([-0.1 * u[0] - 3.0 * u[1] + jnp.sin(t), 3.0 * u[0] - 0.1 * u[1]]))

    sol = solve(callback, counted, rtol=1e-6, atol=1e-6)
    assert counter.forward == int(sol.stats.evaluations)


@pytest.mark.parametrize("saveat", [0.01, np.linspace(0.0, 4.0, 777)], ids=["interval", "array"])
def test_save_times_cost_neither_a_step_nor_an_evaluation(saveat):
    few, many = solve(), solve(saveat=saveat)
    assert int(few.stats.accepted) == int(many.stats.accepted)
    assert int(few.stats.evaluations) == int(many.stats.evaluations)
    np.testing.assert_array_equal(few.us[-1], many.us[-1])


def test_equal_steps_are_neither_rejected_nor_estimated():
    sol = solve(solver=hx.Euler(adaptive=False), dt0=0.5)
    assert int(sol.stats.accepted) == 8
    assert int(sol.stats.rejected) == 0
    assert int(sol.stats.evaluations) == 1 + 8


def test_every_event_is_in_the_log_in_order():
    callback = hx.CallbackSet(hx.PresetTimeCallback([1.0, 2.0], jump), hx.PeriodicCallback(jump, 1.0, initial_affect=True))
    sol = solve(callback)
    assert sol.events.times.tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 3.0]
    assert sol.events.callback.tolist() == [1, 0, 1, 0, 1, 1]
    assert sol.events.component.tolist() == [0] * 6
