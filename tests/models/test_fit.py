"""The training loop against a loop written out in NumPy or optax, and what it does when things go wrong."""

import builtins

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hybridax as hx


def parabola(p):
    return jnp.sum((p["w"] - 1.0) ** 2)


def start():
    return {"w": jnp.array([0.0, 3.0]), "count": jnp.arange(2), "name": "static"}


def quiet(loss=parabola, params=None, steps=5, **options):
    params = start() if params is None else params
    return hx.fit(loss, params, steps=steps, **{"progress": False, "optimizer": optax.sgd(0.1)} | options)


def test_history_and_parameters_are_those_of_gradient_descent():
    w, losses = np.array([0.0, 3.0]), []
    for _ in range(5):
        losses.append(np.sum((w - 1) ** 2))
        w = w - 0.2 * (w - 1)
    result = quiet()
    np.testing.assert_allclose(result.history, losses, rtol=1e-14)
    np.testing.assert_allclose(result.params["w"], w, rtol=1e-14)
    assert (result.steps, result.stopped) == (5, False)


def test_the_default_optimizer_is_adam_as_optax_runs_it():
    """Under strict promotion, which optax itself does not keep."""
    w = jnp.array([0.0, 3.0])
    with jax.numpy_dtype_promotion("standard"):
        adam = optax.adam(1e-3)
        state = adam.init(w)
        for _ in range(5):
            updates, state = adam.update(jax.grad(lambda w: parabola({"w": w}))(w), state)
            w = w + updates
    np.testing.assert_allclose(quiet(optimizer=None).params["w"], w, rtol=1e-14)


def test_other_leaves_are_carried_untouched():
    given = start()
    result = quiet(params=given)
    assert result.params["count"] is given["count"]
    assert result.params["name"] == "static"


def test_the_arrays_of_the_caller_stay_valid():
    given = start()
    quiet(params=given)
    np.testing.assert_array_equal(given["w"], [0.0, 3.0])


def test_zero_steps_return_the_start():
    result = quiet(steps=0)
    np.testing.assert_array_equal(result.params["w"], [0.0, 3.0])
    assert result.history.shape == (0,)


@pytest.mark.parametrize("scalar", [lambda: jnp.asarray(0.0), lambda: jnp.zeros(()), lambda: np.zeros(())])
def test_the_step_is_traced_once(scalar):
    traces = []

    def loss(p, x):
        traces.append(None)
        return (p - x) ** 2

    quiet(loss, scalar(), data=jnp.asarray(2.0), steps=20)
    assert len(traces) == 1


def test_data_is_an_argument_and_batch_gives_it_per_step():
    loss = lambda p, x: jnp.sum(p["w"] * x)
    assert quiet(loss, data=jnp.array([1.0, 2.0]), steps=1).history[0] == 6.0
    seen = []

    def batch(step):
        seen.append(step)
        return jnp.array([0.0, 1.0]) * (step + 1)

    result = quiet(loss, batch=batch, optimizer=optax.sgd(0.0), steps=3)
    assert seen == [0, 1, 2]
    np.testing.assert_array_equal(result.history, [3.0, 6.0, 9.0])


def test_complex_parameters_descend():
    target = jnp.array([1 + 2j, -0.5j])
    loss = lambda p: jnp.sum(jnp.real((p - target) * jnp.conj(p - target)))
    result = quiet(loss, jnp.zeros(2, complex), steps=100)
    np.testing.assert_allclose(result.params, target, atol=1e-8)
    assert np.all(np.diff(result.history) <= 0)


def test_an_optimizer_that_evaluates_the_loss():
    valley = lambda p: (1.0 - p[0]) ** 2 + 100.0 * (p[1] - p[0] ** 2) ** 2
    result = quiet(valley, jnp.array([-1.2, 1.0]), optimizer=optax.lbfgs(), steps=60)
    np.testing.assert_allclose(result.params, [1.0, 1.0], atol=1e-6)


def test_an_optimizer_whose_state_is_the_parameters():
    keep = optax.GradientTransformation(lambda p: p, lambda g, s, p=None: (jax.tree.map(lambda x: -0.1 * x, g), s))
    result = quiet(optimizer=keep)
    np.testing.assert_array_equal(result.opt_state["w"], [0.0, 3.0])
    np.testing.assert_allclose(result.params["w"], quiet().params["w"], rtol=1e-15)


# ---- callbacks and stopping early


def test_callback_sees_every_step_and_its_params_stay_valid():
    seen = []
    result = quiet(callback=lambda *row: seen.append(row))
    assert [step for step, _, _ in seen] == [1, 2, 3, 4, 5]
    np.testing.assert_array_equal([loss for _, loss, _ in seen], result.history)
    np.testing.assert_array_equal([parabola(p) for _, _, p in seen[:-1]], result.history[1:])
    assert seen[-1][2]["name"] == "static"


def test_a_true_answer_of_the_callback_stops():
    result = quiet(callback=lambda step, *_: step == 3)
    assert (result.steps, result.stopped) == (3, True)


def test_target_stops_at_the_first_loss_not_above_it():
    full = quiet(steps=20).history
    result = quiet(steps=20, target=full[7])
    assert (result.steps, result.stopped) == (8, True)


def follow(losses):
    """A run whose losses are the given ones."""
    batch = lambda k: jnp.asarray(losses[k])
    return dict(loss=lambda p, x: x + 0.0 * p, params=jnp.zeros(()), batch=batch, steps=len(losses))


@pytest.mark.parametrize(("tolerance", "steps"), [(0.0, 9), (0.15, 7), (0.5, 7)])
def test_patience_counts_steps_since_the_last_improvement(tolerance, steps):
    # the last improvement: 0.3 at the sixth step; 0.4 at the fourth, for 0.3 is less than 0.15 below it; so too at 0.5
    losses = [1.0, 0.6, 0.7, 0.4, 0.4, 0.3, 0.5, 0.3, 0.9, 0.1]
    result = quiet(**follow(losses), patience=3, tolerance=tolerance)
    assert (result.steps, result.stopped) == (steps, True)


@pytest.mark.parametrize("pause", range(1, 12))
def test_a_resumed_run_stops_where_an_uninterrupted_one_does(tmp_path, pause):
    losses = [1.0, 0.5, 0.6, 0.6, 0.4, 0.5, 0.5, 0.5, 0.1, 0.1, 0.1]
    options = follow(losses) | dict(patience=3)
    whole = quiet(**options)
    assert (whole.steps, whole.stopped) == (8, True)
    quiet(**options | dict(steps=min(pause, 11)), checkpoint=tmp_path / "run.npz")
    result = quiet(**options, checkpoint=tmp_path / "run.npz")
    assert (result.steps, result.stopped) == (8, True)
    np.testing.assert_array_equal(result.history, whole.history)


# ---- failures


def test_a_loss_that_is_not_finite_raises_with_the_last_good_parameters(tmp_path):
    """sqrt(p) with too long a step: 1, 0.25, then negative."""
    loss = lambda p: jnp.sqrt(p["w"])
    options = dict(optimizer=optax.sgd(1.5), checkpoint=tmp_path / "run.npz")
    with pytest.raises(hx.FitError, match="at step 2 the loss is nan") as caught:
        quiet(loss, {"w": jnp.asarray(1.0), "name": "static"}, **options)
    error = caught.value
    assert isinstance(error, FloatingPointError)
    np.testing.assert_allclose(error.history, [1.0, 0.5])
    assert (error.step, error.params["name"]) == (2, "static")
    np.testing.assert_allclose(error.params["w"], 0.25)
    (params, _), step, history = hx.load_checkpoint(
        tmp_path / "run.npz", ({"w": jnp.asarray(1.0)}, optax.sgd(1.5).init(jnp.asarray(1.0)))
    )
    assert (params["w"], step, history.tolist()) == (error.params["w"], 1, [1.0])
    with pytest.raises(hx.FitError) as again:
        quiet(loss, {"w": jnp.asarray(1.0), "name": "static"}, **options, checkpoint_every=1)
    assert (again.value.step, again.value.params["w"]) == (2, error.params["w"])
    result = quiet(loss, {"w": jnp.asarray(1.0)}, steps=2, **options | dict(optimizer=optax.sgd(0.15)))
    np.testing.assert_allclose(result.params["w"], 0.25 - 0.15)


def test_a_gradient_that_is_not_finite_is_named():
    """The loss is 0 and finite, the derivative of the root at 0 is not; the parameters stay."""
    loss = lambda p: p["a"] ** 2 + jnp.sqrt(p["b"]["c"])
    with pytest.raises(hx.FitError, match=r"at step 0 the loss is 0.0, but the gradient .* \['b'\]\['c'\]") as caught:
        quiet(loss, {"a": jnp.asarray(0.0), "b": {"c": jnp.asarray(0.0)}})
    assert (caught.value.params["a"], caught.value.params["b"]["c"]) == (0.0, 0.0)


def test_an_update_that_is_not_finite_leaves_the_parameters():
    with pytest.raises(hx.FitError, match=r"update of \['w'\]") as caught:
        quiet(optimizer=optax.sgd(1e308 * 10))
    np.testing.assert_array_equal(caught.value.params["w"], [0.0, 3.0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(steps=-1), "non-negative integer; got -1"),
        (dict(steps=2.0), "got 2.0"),
        (dict(steps=True), "got True"),
        (dict(checkpoint_every=0), "checkpoint_every"),
        (dict(params={"n": jnp.arange(3)}), "nothing to train"),
        (dict(data=jnp.ones(1), batch=lambda k: jnp.ones(1)), "not both"),
        (dict(loss=lambda p: p["w"]), r"one real number; got float64 of shape \(2,\)"),
        (dict(loss=lambda p: (jnp.sum(p["w"]), 1.0)), "got a tuple"),
        (dict(loss=lambda p: jnp.asarray(1)), "got int64"),
        (dict(loss=lambda p: p["w"][0] * jnp.asarray(1j)), "got complex128"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_wrong_arguments_are_named(options, words):
    with jax.numpy_dtype_promotion("standard"), pytest.raises(ValueError, match=words):
        quiet(**options)


# ---- what one sees


def test_the_bar_shows_loss_and_rate(capfd):
    quiet(progress=True, steps=5)
    text = capfd.readouterr().err
    assert "5/5" in text
    assert "loss=" in text
    assert "step/s" in text
    quiet()
    assert capfd.readouterr().err == ""


def test_plot_draws_the_history_and_makes_the_folder(tmp_path):
    result = quiet()
    axes = result.plot(tmp_path / "new" / "loss.png", label="descent")
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), result.history)
    assert axes.get_legend().get_texts()[0].get_text() == "descent"
    assert (tmp_path / "new" / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_plot_without_matplotlib_names_the_extra(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **options):
        if name.split(".")[0] == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModuleNotFoundError, match=r"hybridax\[plot\]"):
        quiet().plot()
