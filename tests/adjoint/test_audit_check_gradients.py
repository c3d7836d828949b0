"""check_gradients: its figures on losses whose gradients are wrong by a known amount.

The loss here needs no solve: it takes the method's error as its own, so that every figure is known beforehand.
"""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hybridax as hx

P = {"a": jnp.array([0.5, 2.0]), "n": 2, "w": jnp.array(0.3 + 0.4j)}


@dataclasses.dataclass(frozen=True)
class Off(hx.SensitivityMethod):
    """Stands for a method whose gradient is too large by a factor."""

    factor: float = 1.0


def loss(p, method):
    if method.factor < 0:
        raise RuntimeError("no negative factors\nsecond line")

    @jax.custom_vjp
    def scaled(x):
        return x

    scaled.defvjp(lambda x: (x, None), lambda _, bar: (bar * method.factor,))
    return scaled(jnp.sum(p["a"] ** 3) * p["n"] + jnp.abs(p["w"]) ** 2)


METHODS = {"one": Off(), "two": Off(), "three": Off(), "off": Off(factor=1.01), "fails": Off(factor=-1.0)}


@pytest.fixture(scope="module")
def report():
    return hx.check_gradients(loss, P, METHODS, verbose=False)


def test_errors_are_those_that_were_put_in(report):
    assert report.loss == pytest.approx(2 * 8.125 + 0.25)
    assert report.resolution < 1e-9
    for name in ("one", "two", "three"):
        assert report[name].error < 1e-9 and report[name].disagreement == 0
    assert report["off"].error == pytest.approx(0.01, rel=1e-6)
    # relative to the largest entry: the same hundredth; and only the wrong method is far from the middle
    assert report["off"].disagreement == pytest.approx(0.01, rel=1e-12)


def test_gradients_come_back_in_the_structure_of_p(report):
    gradient = report["one"].gradient
    assert gradient["n"] is None
    np.testing.assert_allclose(gradient["a"], 6 * P["a"] ** 2)
    np.testing.assert_allclose(gradient["w"], 2 * np.conj(P["w"]))


def test_times_and_memory_are_told(report):
    for row in report.rows[:4]:
        assert 0 < row.seconds < row.compile_seconds
        assert row.memory >= 0


def test_a_method_that_raises_has_a_row_that_says_so(report):
    row = report["fails"]
    assert row.failure == "RuntimeError: no negative factors"
    assert np.isnan(row.error) and row.gradient is None
    assert "failed: RuntimeError" in str(report)
    with pytest.raises(KeyError, match="one, two"):
        report["four"]


def test_the_table_is_printed_with_a_line_for_each_method(capsys):
    report = hx.check_gradients(loss, P, [Off(), Off(factor=1.01)], repeats=1, directions=1)
    printed = capsys.readouterr().out.splitlines()
    assert printed == str(report).splitlines() and len(printed) == 4
    # a second method of one class goes by its repr
    assert [row.name for row in report.rows] == ["Off", "Off(vjp=None, factor=1.01)"]
    assert report.rows[0].disagreement == report.rows[1].disagreement == pytest.approx(0.005 / 1.005)


def test_error_against_time_is_drawn(report, tmp_path):
    figure = report.plot(tmp_path / "pictures" / "errors.png")
    assert (tmp_path / "pictures" / "errors.png").stat().st_size > 1000
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert labels[:4] == ["one", "two", "three", "off"] and "fails" not in labels


def test_drawing_without_matplotlib_says_what_to_install(report, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match="hybridax\\[plot\\]"):
        report.plot(tmp_path / "errors.png")


def test_wrong_arguments_are_refused():
    with pytest.raises(TypeError, match="sensitivity methods"):
        hx.check_gradients(loss, P, ["discrete"])
    with pytest.raises(ValueError, match="empty"):
        hx.check_gradients(loss, P, [])
    with pytest.raises(ValueError, match="floating-point"):
        hx.check_gradients(loss, {"n": 2}, [Off()])
    with pytest.raises(TypeError, match="one real number"):
        hx.check_gradients(lambda p, method: p["a"], P, [Off()])
