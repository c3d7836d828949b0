"""Wrong inputs: an exception that says what was given, what is expected, and that comes before anything runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hybridax as hx

WRONG = (TypeError, ValueError)


def decay(u, p, t):
    return -u


def problem(f=decay, u0=None, tspan=(0.0, 1.0), p=None, **options):
    return hx.ODEProblem(f, jnp.ones(2) if u0 is None else u0, tspan, p, **options)


def refuses(match, prob=None, **options):
    """The same refusal outside and inside jit."""
    prob = problem() if prob is None else prob
    with pytest.raises(WRONG, match=match):
        hx.solve(prob, **options)
    with pytest.raises(WRONG, match=match):
        jax.jit(lambda u: hx.solve(prob, **options).us)(jnp.ones(2))


def test_a_right_hand_side_of_another_shape_is_refused_with_both_shapes():
    refuses(r"(?s)\(3,\).*\(2,\)", problem(lambda u, p, t: jnp.zeros(3)))


def test_a_right_hand_side_of_another_dtype_is_refused_with_both_dtypes():
    refuses(r"(?s)float32.*float64", problem(lambda u, p, t: u.astype(np.float32)))
    refuses(r"(?s)complex.*float64", problem(lambda u, p, t: u.astype(complex)))


def test_a_right_hand_side_of_another_structure_is_refused():
    refuses("structure", problem(lambda u, p, t: (u, u)))
    refuses("structure|array", problem(lambda u, p, t: None))


@pytest.mark.parametrize("tspan", [(0.0,), (0.0, 1.0, 2.0), 1.0, (0.0, np.inf), (np.nan, 1.0), (0.0, jnp.ones(2))], ids=str)
def test_a_span_that_is_not_a_pair_of_finite_numbers_is_refused(tspan):
    with pytest.raises(WRONG, match="tspan|span"):
        hx.solve(hx.ODEProblem(decay, jnp.ones(2), tspan))


def test_a_save_time_outside_the_span_is_refused_and_named():
    refuses(r"1\.5.*", saveat=[0.5, 1.5])
    refuses(r"-0\.25", saveat=[-0.25, 0.5])
    refuses(r"2\.5", problem(tspan=(2.0, 1.0)), saveat=[2.5])


@pytest.mark.parametrize("saveat", [0.0, -0.1, np.nan, [[0.1]], ["0.1"], [0.1, np.nan]], ids=str)
def test_a_save_argument_that_means_nothing_is_refused(saveat):
    refuses("saveat", saveat=saveat)


@pytest.mark.parametrize("times", [[0.5, 0.2], [0.2, 0.5, 0.4], [0.2, 0.5, 0.5], [0.2, np.inf], [[0.1]]], ids=str)
def test_unsorted_or_repeated_event_times_are_refused(times):
    with pytest.raises(WRONG, match="times"):
        hx.solve(problem(), callback=hx.PresetTimeCallback(times, lambda u, p, t: u))


@pytest.mark.parametrize("period", [0.0, -1.0, np.nan])
def test_a_period_that_is_not_positive_is_refused(period):
    with pytest.raises(WRONG, match="period"):
        hx.solve(problem(), callback=hx.PeriodicCallback(lambda u, p, t: u, period))


def test_a_callback_that_changes_the_state_is_refused_with_both():
    at = lambda affect, **k: hx.PresetTimeCallback([0.5], affect, **k)
    refuses(r"(?s)\(3,\).*\(2,\)", callback=at(lambda u, p, t: jnp.zeros(3)))
    refuses("structure", callback=at(lambda u, p, t: {"u": u}))
    refuses(r"(?s)float32.*float64", callback=at(lambda u, p, t: u.astype(np.float32)))


def test_a_callback_that_writes_parameters_must_return_the_pair_and_their_structure():
    prob = problem(p=jnp.ones(3))
    at = lambda affect: hx.PresetTimeCallback([0.5], affect, affects_params=True)
    refuses("pair|tuple", prob, callback=at(lambda u, p, t: u))
    refuses(r"(?s)\(2,\).*\(3,\)", prob, callback=at(lambda u, p, t: (u, p[:2])))
    refuses("structure", prob, callback=at(lambda u, p, t: (u, (p, p))))


def test_what_is_not_a_callback_is_refused():
    refuses("(?i)callback", callback=lambda u, p, t: u)
    with pytest.raises(WRONG, match="callable"):
        hx.PresetTimeCallback([0.5], None)
    with pytest.raises(WRONG, match="save_positions"):
        hx.PresetTimeCallback([0.5], lambda u, p, t: u, save_positions=True)


@pytest.mark.parametrize("sensealg", ["discrete", 3, hx.DiscreteAdjoint], ids=str)
def test_an_unknown_sensitivity_method_is_refused(sensealg):
    refuses("sensealg", sensealg=sensealg)


@pytest.mark.parametrize("u0", [jnp.array([1, 2]), {"x": jnp.ones(2), "n": 1}, np.array([True])], ids=["int", "leaf", "bool"])
def test_an_integer_state_is_refused_before_tracing(u0):
    def never(u, p, t):
        raise AssertionError("traced")

    with pytest.raises(WRONG, match="int|bool"):
        hx.solve(problem(never, u0))


def test_an_unknown_option_is_named():
    with pytest.raises(TypeError, match="rtoll"):
        hx.solve(problem(), rtoll=1e-3)
    with pytest.raises(TypeError, match="rtoll"):
        hx.solve(problem(rtoll=1e-3))


@pytest.mark.parametrize(
    "options", [{"rtol": -1.0}, {"atol": np.nan}, {"rtol": jnp.ones(2)}, {"dt0": 0.0}, {"max_steps": 0}], ids=str
)
def test_a_number_out_of_range_is_named(options):
    refuses(next(iter(options)), **options)


def test_equal_steps_need_their_length():
    with pytest.raises(WRONG, match="dt0"):
        hx.solve(problem(), hx.Tsit5(adaptive=False))
    with pytest.raises(WRONG, match="adaptive=False"):
        hx.Euler()


class OwnError(Exception):
    pass


def test_exceptions_of_the_users_own_functions_pass_through_unchanged():
    def fails(u, p, t):
        raise OwnError("mine")

    solves = (
        lambda: hx.solve(problem(fails)),
        lambda: hx.solve(problem(), callback=hx.PresetTimeCallback([0.5], fails)),
        lambda: jax.grad(lambda u: jnp.sum(hx.solve(problem(fails), u0=u).us))(jnp.ones(2)),
    )
    for solve in solves:
        with pytest.raises(OwnError) as error:
            solve()
        assert str(error.value) == "mine"


@pytest.mark.parametrize(
    "f, note",
    [
        (lambda u, p: -u, "are called as"),
        (lambda u, p, t: np.sin(u), "Use jax.numpy"),
        (lambda u, p, t: -u if u[0] > 0 else u, "place of a Python if"),
    ],
)
def test_an_error_inside_a_function_says_how_it_is_called(f, note):
    with pytest.raises(TypeError) as caught:
        hx.solve(hx.ODEProblem(f, jnp.ones(1), (0.0, 1.0), jnp.ones(1)))
    assert note in " ".join(caught.value.__notes__)
