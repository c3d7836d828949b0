"""Checkpoints keep every bit, refuse what is not theirs, and survive a kill at any moment."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hybridax as hx


def tree():
    return {
        "network": hx.MLP((2, 3, 1), key=jax.random.key(0)),
        "half": jnp.array([1.1, -jnp.inf], jnp.bfloat16),
        "scalar": jnp.asarray(3, jnp.int32),
        "complex": jnp.array([1 + 2j]),
        "key": jax.random.key(7),
        "host": np.array([np.nan, -0.0]),
        "name": "not an array",
    }


def bits(x):
    """Every array of a pytree as bytes, with its dtype and shape."""
    raw = lambda a: jax.random.key_data(a) if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else a
    arrays = [a for a in jax.tree.leaves(x) if hasattr(a, "dtype")]
    return [(str(a.dtype), a.shape, np.asarray(raw(a)).tobytes()) for a in arrays]


def test_every_bit_of_every_dtype_comes_back(tmp_path):
    path, losses = tmp_path / "new" / "folder" / "run.npz", np.array([0.1, 1 / 3])
    hx.save_checkpoint(path, tree(), 2, losses)
    back, step, history = hx.load_checkpoint(path, tree())
    assert bits(back) == bits(tree())
    assert (step, history.tolist(), back["name"]) == (2, losses.tolist(), "not an array")
    assert jax.tree.structure(back) == jax.tree.structure(tree())
    assert os.listdir(path.parent) == ["run.npz"]


@pytest.mark.parametrize("moment", ["savez", "fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_checkpoint_alone(tmp_path, monkeypatch, moment):
    path = tmp_path / "run.npz"
    hx.save_checkpoint(path, tree(), 1, [0.5])
    before = path.read_bytes()

    def fail(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr(np if moment == "savez" else os, moment, fail)
    with pytest.raises(OSError, match="no space"):
        hx.save_checkpoint(path, tree(), 2, [0.5, 0.4])
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["run.npz"]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off", b"\x80\x04K\x01.", b"hello"])
def test_a_file_of_another_kind_is_refused(tmp_path, content):
    path = tmp_path / "run.npz"
    path.write_bytes(content)
    with pytest.raises(hx.CheckpointError, match="not a checkpoint of hybridax, or is damaged"):
        hx.load_checkpoint(path, tree())


def test_a_cut_or_altered_checkpoint_is_refused(tmp_path):
    path = tmp_path / "run.npz"
    hx.save_checkpoint(path, tree(), 1, [0.5])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(hx.CheckpointError, match="damaged"):
        hx.load_checkpoint(path, tree())
    at = whole.index(np.asarray(tree()["network"].weights[0]).tobytes())
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(hx.CheckpointError, match="damaged"):
        hx.load_checkpoint(path, tree())


@pytest.mark.parametrize("content", [dict(x=np.ones(2)), dict(format=2)])
def test_another_npz_or_another_format_is_refused(tmp_path, content):
    np.savez(tmp_path / "run.npz", **content)
    with pytest.raises(hx.CheckpointError, match=r"not a checkpoint|format 2"):
        hx.load_checkpoint(tmp_path / "run.npz", tree())


def test_pickled_objects_are_never_read(tmp_path):
    np.savez(tmp_path / "run.npz", format=1, structure=np.array([{}], dtype=object))
    with pytest.raises(hx.CheckpointError, match="allow_pickle"):
        hx.load_checkpoint(tmp_path / "run.npz", tree())


def test_a_missing_file_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        hx.load_checkpoint(tmp_path / "run.npz", tree())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t | {"scalar": jnp.ones(2, jnp.int32)}, r"only the file has .*\['scalar'\]:\(\):int32.*\(2,\)"),
        (lambda t: t | {"scalar": jnp.asarray(3.0)}, "float64"),
        (lambda t: t | {"extra": jnp.ones(1)}, r"only the file has \[\], only this run has .*extra"),
        (lambda t: {k: x for k, x in t.items() if k != "half"}, r"\['half'\].*only this run has \[\]"),
    ],
)
def test_another_structure_is_refused_and_the_difference_named(tmp_path, change, words):
    hx.save_checkpoint(tmp_path / "run.npz", tree(), 1, [0.5])
    with pytest.raises(hx.CheckpointError, match=words):
        hx.load_checkpoint(tmp_path / "run.npz", change(tree()))


# ---- resuming

RUN = textwrap.dedent(
    """
    import os, signal, sys
    import jax
    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp
    import optax
    import hybridax as hx

    def batch(step):
        return jax.random.normal(jax.random.fold_in(jax.random.key(3), step), (8, 2))

    def loss(net, x):
        return jnp.mean((jax.vmap(net)(x)[:, 0] - jnp.sin(x[:, 0])) ** 2)

    def run(steps=30, **options):
        optimizer = optax.chain(optax.add_noise(0.01, 0.55, jax.random.key(4)), optax.adam(1e-2))
        net = hx.MLP((2, 8, 1), key=jax.random.key(0))
        return hx.fit(loss, net, steps=steps, optimizer=optimizer, batch=batch, progress=False, **options)
    """
)
KILLED = RUN + textwrap.dedent(
    """
    def die(step, value, params):
        if step == 17:
            os.kill(os.getpid(), signal.SIGKILL)

    run(checkpoint=sys.argv[1], checkpoint_every=5, callback=die)
    """
)


@pytest.fixture(scope="module")
def run():
    names = {}
    exec(RUN, names)
    return names["run"]


@pytest.fixture(scope="module")
def uninterrupted(run):
    return run()


def assert_same_run(result, reference):
    assert bits(result.params) == bits(reference.params)
    assert bits(result.opt_state) == bits(reference.opt_state)
    assert result.history.tolist() == reference.history.tolist()
    assert (result.steps, result.stopped) == (reference.steps, reference.stopped)


def test_resume_after_a_kill_is_bit_identical(tmp_path, run, uninterrupted):
    path = tmp_path / "run.npz"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], env=os.environ, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    seen = []
    result = run(checkpoint=path, callback=lambda step, *_: seen.append(step))
    assert seen == list(range(16, 31))  # killed at 17, last written at 15
    assert_same_run(result, uninterrupted)


def test_resume_after_an_exception_is_bit_identical(tmp_path, run, uninterrupted):
    def interrupt(step, *_):
        if step == 13:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(checkpoint=tmp_path / "run.npz", checkpoint_every=4, callback=interrupt)
    assert_same_run(run(checkpoint=tmp_path / "run.npz"), uninterrupted)


def test_a_run_in_parts_is_the_run_in_one(tmp_path, run, uninterrupted):
    for steps in (1, 10, 11, 30):
        result = run(steps, checkpoint=tmp_path / "run.npz")
        assert result.steps == steps
    assert_same_run(result, uninterrupted)
    written = Path(tmp_path / "run.npz").stat().st_mtime_ns
    assert_same_run(run(checkpoint=tmp_path / "run.npz"), uninterrupted)
    assert Path(tmp_path / "run.npz").stat().st_mtime_ns == written


def test_resume_false_starts_anew(tmp_path, run):
    run(5, checkpoint=tmp_path / "run.npz")
    seen = []
    result = run(7, checkpoint=tmp_path / "run.npz", resume=False, callback=lambda step, *_: seen.append(step))
    assert seen == list(range(1, 8))
    assert hx.load_checkpoint(tmp_path / "run.npz", (result.params, result.opt_state))[1] == 7


def test_another_optimizer_cannot_resume(tmp_path, run):
    run(2, checkpoint=tmp_path / "run.npz")
    with pytest.raises(hx.CheckpointError, match="another optimizer"):
        hx.fit(
            lambda net: net(jnp.ones(2))[0],
            hx.MLP((2, 8, 1), key=jax.random.key(0)),
            steps=3,
            optimizer=optax.sgd(0.1),
            checkpoint=tmp_path / "run.npz",
            progress=False,
        )
