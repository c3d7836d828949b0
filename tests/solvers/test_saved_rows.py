"""Which rows a solve returns: their times, sides, order and values, against the rules in `reference.rows`."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from reference import Jump

import hybridax as hx

POSITIONS = list(itertools.product((False, True), repeat=2))
EACH_POSITION = pytest.mark.parametrize("positions", POSITIONS, ids=["none", "right", "left", "both"])
TIGHT = {"rtol": 1e-9, "atol": 1e-9}
BEFORE, AFTER = np.nextafter(0.5, 0.0), np.nextafter(0.5, 1.0)


def decay(u, p, t):
    return -u


def double_and_add_time(u, p, t):
    return 2 * u + t


def add_one(u, p, t):
    return u + 1.0


def decayed(u, p, a, b):
    return u * np.exp(-(b - a))


def jumps(times, affect, save):
    return [Jump(t, lambda u, p, t: (affect(u, p, t), p), save) for t in times]


def solve(callback, saveat, tspan=(0.0, 1.0), **options):
    prob = hx.ODEProblem(decay, jnp.array([1.0]), tspan)
    return hx.solve(prob, callback=callback, saveat=saveat, **TIGHT, **options)


def grid(saveat, tspan=(0.0, 1.0)):
    """The save times that a ``saveat`` argument stands for."""
    t0, t1 = tspan
    if saveat is None:
        return [t0, t1]
    if np.ndim(saveat):
        return list(saveat)
    d = np.sign(t1 - t0)
    inner = [t0 + d * k * saveat for k in range(1000) if k * saveat < abs(t1 - t0) - 1e-9]
    return [*inner, t1]


def check(sol, expected):
    """Valid rows equal ``expected``; what follows them is padding that cannot be used by mistake."""
    count = len(expected)
    valid = np.asarray(sol.valid)
    assert valid.tolist() == [True] * count + [False] * (valid.size - count)
    np.testing.assert_allclose(sol.ts[:count], [r.time for r in expected], rtol=1e-15, atol=0)
    assert sol.sides[:count].tolist() == [r.side for r in expected]
    np.testing.assert_allclose(sol.us[:count], np.stack([r.u for r in expected]) if count else sol.us[:0], atol=3e-8)
    assert np.all(np.isinf(sol.ts[count:])) and np.all(np.isnan(sol.us[count:]))
    assert np.all(np.asarray(sol.sides[count:]) == 0)


SAVES = {
    "ends": None,
    "interval": 0.25,
    "interval that does not divide": 0.3,
    "on the event": [0.2, 0.5, 0.7],
    "one ulp before": [0.2, BEFORE, 0.7],
    "one ulp after": [0.2, AFTER, 0.7],
    "unsorted": [0.7, 0.5, 0.2],
    "past the event": [0.5 + 1e-9, 0.6, 0.7],
    "no time at all": [],
}


@EACH_POSITION
@pytest.mark.parametrize("saveat", SAVES.values(), ids=SAVES)
def test_an_event_inside_the_span_adds_its_limits_and_a_save_on_it_is_its_left_limit_once(saveat, positions):
    sol = solve(hx.PresetTimeCallback([0.5], double_and_add_time, save_positions=positions), saveat)
    expected = reference.rows(decayed, [1.0], None, (0.0, 1.0), grid(saveat), jumps([0.5], double_and_add_time, positions))
    check(sol, expected)
    assert sol.ts.shape == (len(expected),)


@EACH_POSITION
@pytest.mark.parametrize("saveat", [None, [0.0, 0.5, 1.0], [0.3]], ids=["ends", "on events", "between"])
def test_events_at_both_ends_save_the_state_before_them_once(saveat, positions):
    times = [0.0, 0.5, 1.0]
    sol = solve(hx.PresetTimeCallback(times, double_and_add_time, save_positions=positions), saveat)
    check(
        sol,
        reference.rows(decayed, [1.0], None, (0.0, 1.0), grid(saveat), jumps(times, double_and_add_time, positions)),
    )
    np.testing.assert_array_equal(sol.events.times, times)


@pytest.mark.parametrize("ends", POSITIONS, ids=["inner", "final", "initial", "both"])
@pytest.mark.parametrize("phase", [0.0, 0.2, 0.35], ids="phase={}".format)
def test_a_periodic_callback_fires_at_multiples_of_its_period_and_at_the_ends_only_if_asked(phase, ends):
    initial, final = ends
    t0, t1, period = 0.5, 1.7, 0.4
    callback = hx.PeriodicCallback(add_one, period, phase=phase, initial_affect=initial, final_affect=final)
    sol = solve(callback, None, (t0, t1))
    times = [t0 + phase + k * period for k in range(4)]
    times = [t1 if abs(t - t1) < 1e-9 else t for t in times if t < t1 + 1e-9]
    times = [t for t in times if (initial or t != t0) and (final or t != t1)]
    np.testing.assert_allclose(sol.events.times, times, rtol=1e-15)
    check(sol, reference.rows(decayed, [1.0], None, (t0, t1), [t0, t1], jumps(times, add_one, (True, True))))


def test_a_periodic_callback_multiplies_its_period_and_never_accumulates_it():
    prob = hx.ODEProblem(decay, jnp.array([1.0]), (0.0, 100.0))
    callback = hx.PeriodicCallback(add_one, 0.1, save_positions=(False, False))
    sol = hx.solve(prob, callback=callback, saveat=[0.3 * k for k in range(1, 300)])
    np.testing.assert_array_equal(sol.events.times, 0.1 * np.arange(1, 1000))
    np.testing.assert_array_equal(sol.sides, [-1] * 299)


@EACH_POSITION
@pytest.mark.parametrize("saved", [False, True], ids=["not saved", "saved"])
@pytest.mark.parametrize("other", [(True, True), (False, True), (True, False)], ids=["both", "right", "left"])
def test_events_at_one_instant_apply_in_the_order_of_their_set(other, saved, positions):
    first = hx.PresetTimeCallback([0.5], double_and_add_time, save_positions=positions)
    second = hx.PresetTimeCallback([0.25, 0.5], add_one, save_positions=other)
    saveat = [0.5] if saved else [0.4]
    sol = solve(hx.CallbackSet(first, second), saveat)
    both = [*jumps([0.5], double_and_add_time, positions), *jumps([0.25, 0.5], add_one, other)]
    check(sol, reference.rows(decayed, [1.0], None, (0.0, 1.0), saveat, both))
    assert sol.events.callback.tolist() == [1, 0, 1]


def test_events_one_ulp_apart_are_one_instant_and_apply_in_the_order_of_their_set():
    times = [AFTER, 0.5, BEFORE]
    affects = [double_and_add_time, add_one, double_and_add_time]
    sol = solve(hx.CallbackSet(*(hx.PresetTimeCallback([t], a) for t, a in zip(times, affects, strict=True))), [0.5])
    together = [jump for a in affects for jump in jumps([0.5], a, (True, True))]
    expected = reference.rows(decayed, [1.0], None, (0.0, 1.0), [0.5], together)
    assert sol.events.callback.tolist() == [0, 1, 2]
    assert sol.sides.tolist() == [r.side for r in expected]
    np.testing.assert_allclose(sol.us, np.stack([r.u for r in expected]), atol=1e-8)


def test_initial_events_of_a_set_each_add_their_right_limit():
    callback = hx.CallbackSet(hx.PresetTimeCallback([0.0], add_one), hx.PeriodicCallback(add_one, 0.7, initial_affect=True))
    sol = solve(callback, None)
    assert sol.ts.tolist() == [0.0, 0.0, 0.0, 0.7, 0.7, 1.0]
    np.testing.assert_allclose(sol.us[:3, 0], [1.0, 2.0, 3.0])


@EACH_POSITION
def test_rows_of_a_reverse_time_span_are_ordered_backwards_left_before_right(positions):
    tspan, times, saveat = (1.0, -0.5), [0.8, 0.5, 0.0], [0.9, 0.5, -0.5]
    sol = solve(hx.PresetTimeCallback(times, double_and_add_time, save_positions=positions), saveat, tspan)
    check(sol, reference.rows(decayed, [1.0], None, tspan, saveat, jumps(times, double_and_add_time, positions)))


@pytest.mark.parametrize("saveat", [None, 0.4], ids=["ends", "interval"])
def test_an_interval_walks_backwards_on_a_reverse_time_span(saveat):
    sol = solve(hx.PeriodicCallback(add_one, 0.4), saveat, (1.0, 0.0))
    times = [1.0 - 0.4, 1.0 - 0.8]
    check(
        sol,
        reference.rows(decayed, [1.0], None, (1.0, 0.0), grid(saveat, (1.0, 0.0)), jumps(times, add_one, (True, True))),
    )


@pytest.mark.parametrize("start, stop", [(None, None), (False, None), (True, False), (False, True), (True, True)])
def test_save_start_and_save_end_add_or_drop_the_ends(start, stop):
    flags = {"save_start": start, "save_end": stop}
    ends = [0.0] * (start is not False) + [1.0] * (stop is not False)
    assert solve(None, None, **flags).ts.tolist() == ends
    np.testing.assert_allclose(solve(None, 0.25, **flags).ts, [t for t in grid(0.25) if t in ends or 0 < t < 1])
    asked = [0.0] * bool(start) + [0.5] + [1.0] * bool(stop)
    assert solve(None, [0.5], **flags).ts.tolist() == asked
    # times of an array are kept whatever the flags say, and are not repeated
    assert solve(None, [0.0, 0.5, 1.0], **flags).ts.tolist() == [0.0, 0.5, 1.0]


@EACH_POSITION
def test_traced_times_give_the_same_rows_as_known_ones_and_padding(positions):
    @jax.jit
    def traced(times, saveat):
        return solve(hx.PresetTimeCallback(times, double_and_add_time, save_positions=positions), saveat)

    for name in ("on the event", "one ulp before", "one ulp after", "unsorted", "past the event"):
        for times in ([0.0, 0.5, 1.0], [0.1, 0.5, 0.9]):
            expected = reference.rows(
                decayed, [1.0], None, (0.0, 1.0), SAVES[name], jumps(times, double_and_add_time, positions)
            )
            check(traced(np.array(times), np.array(SAVES[name])), expected)


def test_save_everystep_saves_the_start_and_every_accepted_step_once():
    sol = solve(None, None, save_everystep=True)
    accepted = int(sol.stats.accepted)
    ts = np.asarray(sol.ts)[np.asarray(sol.valid)]
    assert ts.size == accepted + 1 and ts[0] == 0.0 and ts[-1] == 1.0
    assert np.all(np.diff(ts) > 0)
    np.testing.assert_allclose(sol.us[: ts.size, 0], np.exp(-ts), rtol=1e-8)


def test_save_everystep_meets_every_event():
    callback = hx.PresetTimeCallback([0.0, 0.3, 0.6, 1.0], double_and_add_time, save_positions=(False, True))
    sol = solve(callback, None, save_everystep=True)
    keep = np.asarray(sol.valid)
    ts, sides = np.asarray(sol.ts)[keep], np.asarray(sol.sides)[keep]
    assert ts.size == int(sol.stats.accepted) + 1 + 4
    assert ts[sides == 1].tolist() == [0.0, 0.3, 0.6, 1.0]
    assert ts[sides == -1].tolist() == [0.0, 0.3, 0.6, 1.0]
    steps = np.diff(ts)
    assert np.all((steps > 0) | (sides[1:] == 1))


def test_rows_do_not_depend_on_whether_others_are_saved():
    few, many = (solve(hx.PeriodicCallback(add_one, 0.3), s) for s in ([0.35, 0.8], np.linspace(0, 1, 101)))
    assert int(few.stats.accepted) == int(many.stats.accepted)
    np.testing.assert_array_equal(few.us[np.asarray(few.ts) == 0.8], many.us[np.asarray(many.ts) == 0.8])
