"""Every example runs: a few steps lower its loss, and it draws its picture."""

import importlib.util
import pathlib

import jax
import pytest

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem not in ("hybrid_node", "host_simulator"))


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", NAMES)
def test_a_few_steps_lower_the_loss(name, tmp_path, capsys):
    picture = tmp_path / "out" / "picture.png"
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # as a user runs it
        result = load(name).main(str(picture), steps=3)
    assert len(result.history) == 3 and result.history[-1] < result.history[0]
    assert str(picture) in capsys.readouterr().out
    assert picture.stat().st_size > 10_000


def test_the_circuit_is_found_through_compiled_code(tmp_path):
    picture = tmp_path / "out" / "picture.png"
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        assert load("host_simulator").main(str(picture)) == 0
    assert picture.stat().st_size > 10_000
