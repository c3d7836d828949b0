"""The benchmarks' table is right about what it compares: on entries whose gradients and times are known."""

import pathlib
import sys
import time

import jax
import jax.numpy as jnp
import pytest

# behind tests/, which has a package of the same name as one there
sys.path.append(str(pathlib.Path(__file__).parent.parent / "benchmarks"))

import measure
import report
from comparison import OURS, Entry, Goal, Problem, against


def slow(seconds):
    """An entry's gradient of ``sum(p**2)`` that takes ``seconds``."""

    def gradient(p):
        time.sleep(seconds)
        return 2 * p

    return gradient


def table(own, peer, goals, until=float("inf")):
    effort = measure.Effort(budget=0.0, rounds=(5, 5), compiles=1, trainings=1, until=until)
    problem = Problem("known", "", jnp.arange(1.0, 4.0), (own, peer), goals)
    return report.compare(problem, measure.measure(problem, effort))


def test_a_ratio_is_the_peers_time_over_ours_and_decides_whether_the_goal_is_met():
    own, peer = Entry(OURS, "a", gradient=slow(0.01)), Entry("peer", "b", gradient=slow(0.03))
    goals = (Goal("gradient", own.key, peer.key, 1.5), Goal("gradient", own.key, peer.key, 6.0))
    met, missed = table(own, peer, goals)
    assert 1.5 < met["ratio"] < 6.0
    assert (met["met"], missed["met"]) == (True, False)
    assert met["ratio_worst_decile"] <= met["ratio"]
    assert report.line(met).endswith("yes") and report.line(missed).endswith("NO")


def test_a_peer_with_another_gradient_has_no_figures():
    own = Entry(OURS, "a", lambda p: jnp.sum(p**2))
    peer = Entry("peer", "b", lambda p: jnp.sum(p**2) + 1e-3 * p[0], tolerance=1e-5)
    rows = table(own, peer, against(own, peer, 2.0))
    assert {r["quantity"] for r in rows} == {"gradient", "forward", "compile", "memory"}
    assert all(r["met"] is None and r["status"].startswith("differs") for r in rows)


def test_equal_gradients_have_all_figures():
    own, peer = Entry(OURS, "a", lambda p: jnp.sum(p**2)), Entry("peer", "b", lambda p: jnp.vdot(p, p))
    rows = table(own, peer, (Goal("overhead", own.key, own.key, 2.0), *against(own, peer, 2.0)))
    assert all(r["met"] is not None and r["ratio"] > 0 for r in rows)


def test_training_is_timed_by_the_entry_and_compared_by_its_losses():
    own = Entry(OURS, "fit", train=lambda: (1.0, [3.0, 2.0, 1.0]))
    peer = Entry("peer", "loop", train=lambda: (4.0, [3.0, 2.0]))
    other = Entry("other", "loop", train=lambda: (4.0, [3.0, 2.5]))
    goal = lambda entry: (Goal("training", own.key, entry.key, 3.0),)
    (row,) = table(own, peer, goal(peer))
    assert row["ratio"] == 4.0 and row["met"]
    (row,) = table(own, other, goal(other))
    assert row["met"] is None and row["status"].startswith("losses differ")


@pytest.mark.parametrize(
    "loss, until, status",
    [
        (None, float("inf"), measure.NOT_INSTALLED),
        (lambda p: jnp.sum(p**2), 0.0, measure.NO_TIME),
    ],
)
def test_what_was_not_measured_says_why(loss, until, status):
    own, peer = Entry(OURS, "a", lambda p: jnp.sum(p**2)), Entry("peer", "b", loss)
    rows = table(own, peer, against(own, peer, 2.0), until)
    assert all(r["met"] is None and r["status"] == status for r in rows)
    assert all(report.line(r).endswith(status) for r in rows)


def test_the_picture_holds_every_measured_goal(tmp_path):
    own, peer = Entry(OURS, "a", lambda p: jnp.sum(p**2)), Entry("peer", "b", lambda p: jnp.vdot(p, p))
    path = tmp_path / "picture.png"
    report.draw(table(own, peer, against(own, peer, 2.0)), path, report.about("test"))
    assert path.read_bytes().startswith(b"\x89PNG")
    assert jax.default_backend() in report.about("test")["devices"][0]
