"""Checkpoints: the same gradients from a record that is held within a budget of bytes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from counting import Counter
from hybridax.adjoint.checkpoints import checkpoints_of_number, plan_checkpoints
from problems.case import relative_error

import hybridax as hx


def predators(u, p, t):
    return jnp.stack([p[0] * u[0] - p[1] * u[0] * u[1], -p[2] * u[1] + p[3] * u[0] * u[1]])


def rewrite(u, p, t):
    return 0.9 * u + 0.1 * p[0], p * (1 + 0.01 * jnp.sin(u[0]))


def bounce(u, p, t):
    return u.at[1].multiply(-p[3])


def fall(u, p, t):
    return jnp.stack([u[1], -4.0 * p[0] - 0.1 * p[1] * u[1]])


P = np.array([1.5, 1.0, 0.8, 0.9])
BOTH = (True, True)
JUMPS = hx.PeriodicCallback(lambda u, p, t: 0.9 * u + 0.1 * p[0], 0.7, initial_affect=True, save_positions=BOTH)
WRITES = hx.PresetTimeCallback(np.array([0.0, 1.0, 2.5, 4.0]), rewrite, affects_params=True)
BOUNCES = hx.ContinuousCallback(lambda u, p, t: u[0], None, bounce, save_positions=BOTH)
PROBLEMS = {
    "jumps": (predators, JUMPS),
    "parameters_written": (predators, WRITES),
    "bounces": (fall, BOUNCES),
}


def gradient(problem: str, method, small: bool = True, max_steps: int = 300):
    f, callback = PROBLEMS[problem]
    if not small:
        # as many components as take the way without Jacobians
        f = _beside(f)
    prob = hx.ODEProblem(f, jnp.array([1.0, 1.2]), (0.0, 4.0), jnp.asarray(P), callback=callback)

    def loss(u0, p):
        options = {"saveat": np.linspace(0.0, 4.0, 9), "rtol": 1e-9, "atol": 1e-9, "max_steps": max_steps}
        u0 = u0 if small else jnp.append(u0, jnp.ones(8))
        return jnp.sum(jnp.sin(hx.solve(prob, u0=u0, p=p, sensealg=method, **options).us[:, :2]))

    return jax.jit(jax.grad(loss, (0, 1)))


def _beside(f):
    def rhs(u, p, t):
        return jnp.append(f(u[:2], p, t), -u[2:] * p[0])

    return rhs


LANES = jnp.array([[1.0, 1.2], [0.8, 1.5]]), jnp.stack([P, 1.1 * P])


@pytest.mark.parametrize(
    "problem, small, lanes",
    [("jumps", True, False), ("jumps", False, True), ("parameters_written", True, False), ("bounces", True, True)],
)
def test_discrete_is_the_same_to_rounding(problem, small, lanes):
    kept = gradient(problem, hx.DiscreteAdjoint(), small)
    replayed = gradient(problem, hx.DiscreteAdjoint(checkpoints=4), small)
    if lanes:
        kept, replayed = jax.vmap(kept), jax.vmap(replayed)
    at = LANES if lanes else tuple(x[0] for x in LANES)
    for a, b in zip(kept(*at), replayed(*at)):
        assert np.all(np.isfinite(a)) and np.any(a != 0)
        # slopes of a single lane are recorded where all states are kept: evaluated again they may differ in the last bits
        np.testing.assert_allclose(a, b, rtol=0 if lanes else 1e-13)


@pytest.mark.parametrize(
    "problem, method",
    [
        ("jumps", hx.QuadratureAdjoint),
        ("parameters_written", hx.InterpolatingAdjoint),
        ("parameters_written", hx.GaussAdjoint),
        ("bounces", hx.InterpolatingAdjoint),
    ],
)
def test_dense_methods_agree_with_the_discrete_adjoint(method, problem):
    few = 16 * 9 * 40  # bytes: some forty rows of a state of two components, seven slopes and its checkpoint
    at = tuple(x[1] for x in LANES)
    expected = gradient(problem, hx.DiscreteAdjoint())(*at)
    checkpointed = gradient(problem, method(checkpointing=True, memory=few))(*at)
    for a, b in zip(checkpointed, expected):
        assert relative_error(a, b) < 1e-6


@pytest.mark.parametrize("name", ["discrete", "interpolating"])
def test_the_budget_holds(name):
    n, memory = 500, 800_000
    method = {
        "discrete": hx.DiscreteAdjoint(memory=memory),
        "interpolating": hx.InterpolatingAdjoint(checkpointing=True, memory=memory),
    }[name]
    u0 = jnp.sin(jnp.linspace(0.0, 6.0, n))
    prob = hx.ODEProblem(lambda u, p, t: -p * u * (1 + jnp.sin(30 * t)), u0, (0.0, 5.0), jnp.asarray(1.0))

    def loss(u0, method):
        return jnp.sum(hx.solve(prob, u0=u0, sensealg=method, max_steps=1000, rtol=1e-8, atol=1e-8).us)

    def held(method):
        _, pullback = jax.vjp(lambda u0: loss(u0, method), u0)
        arrays = {id(x): x.nbytes for x in jax.tree.leaves(pullback) if hasattr(x, "nbytes")}
        return sum(arrays.values()), pullback(1.0)[0]

    bytes_held, few = held(method)
    scalars = 2 * 8 * 1024  # t and h of every row
    assert bytes_held < memory + scalars + 8 * u0.nbytes
    bytes_of_all, all_rows = held(hx.DiscreteAdjoint(memory=2**30))
    assert bytes_of_all > 1000 * u0.nbytes
    np.testing.assert_allclose(few, all_rows, rtol=1e-6)


def test_the_steps_are_taken_again_once():
    counter = Counter(2)
    prob = hx.ODEProblem(lambda u, p, t: counter.tick(predators(u, p, t)), jnp.array([1.0, 1.2]), (0.0, 4.0), jnp.asarray(P))

    def evaluations(method):
        counter.reset()
        jax.block_until_ready(jax.grad(lambda p: jnp.sum(hx.solve(prob, p=p, sensealg=method, max_steps=400).us))(prob.p))
        jax.effects_barrier()
        return counter.forward

    solution = hx.solve(prob, max_steps=400)
    steps = int(solution.stats.accepted) + int(solution.stats.rejected)
    extra = evaluations(hx.DiscreteAdjoint(checkpoints=4)) - evaluations(hx.DiscreteAdjoint())
    # and the first slope of each block, and the stages of one chunk of rows, whose slopes are not recorded then
    assert 0 < extra <= 6 * steps + 4 + 6 * 32


def test_a_budget_that_is_too_small_says_what_is_needed():
    prob = hx.ODEProblem(predators, jnp.array([1.0, 1.2]), (0.0, 4.0), jnp.asarray(P))
    method = hx.DiscreteAdjoint(memory=100)
    with pytest.raises(ValueError, match=r"memory=100 bytes .* Give memory=\d+ or more"):
        jax.grad(lambda p: jnp.sum(hx.solve(prob, p=p, sensealg=method).us))(prob.p)
    with pytest.raises(ValueError, match="checkpoints=1"):
        jax.grad(lambda p: jnp.sum(hx.solve(prob, p=p, sensealg=hx.DiscreteAdjoint(checkpoints=1)).us))(prob.p)


def test_plans_cover_all_rows_within_the_budget():
    for rows in (32, 64, 2016, 4128):
        for per_row, block in ((1, 1), (1, 32), (9, 1)):
            for memory in (8 * rows * per_row - 8, 8 * 1300, 8 * 700):
                try:
                    plan = plan_checkpoints(rows, 8, per_row, block, memory)
                except ValueError as error:
                    least = int(str(error).split("Give memory=")[1].split()[0])
                    assert least > memory
                    plan, memory = plan_checkpoints(rows, 8, per_row, block, least), least
                if plan is None:
                    assert rows * per_row * 8 <= memory
                    continue
                assert plan.slots * plan.window >= rows and plan.slots % 2 == 0 and plan.window % block == 0
                assert 8 * (plan.slots + plan.window * per_row) <= memory or plan.slots > rows
    plan = checkpoints_of_number(2016, 7, 32)
    assert plan is not None and plan.slots == 6 and plan.slots * plan.window >= 2016
