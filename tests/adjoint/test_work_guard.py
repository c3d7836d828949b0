"""No gradient does more work than it did when work.json was recorded.

Work is counted, not timed: right-hand-side evaluations and pullbacks that ran; operations of the program handed to the
compiler; instructions in the loops of the compiled one; bytes of its temporaries. After a change that is meant to do more,
or that does less, record anew and commit the file, with the reason:

    HYBRIDAX_RECORD_WORK=1 .venv/bin/python -m pytest -n 0 tests/adjoint/test_work_guard.py
"""

import json
import os
import pathlib
from importlib.metadata import version

import hlo
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from counting import Counter
from problems.networks import mlp, wave_mlp

import hybridax as hx

FILE = pathlib.Path(__file__).with_name("work.json")
RECORDED = json.loads(FILE.read_text()) if FILE.exists() else {}
RECORD = os.environ.get("HYBRIDAX_RECORD_WORK", "") not in ("", "0")
#: how much more than recorded passes: step sequences and XLA's choices differ a little between processors
SLACK = dict(evaluations=1.03, pullbacks=1.03, lowered_operations=1.05, loops=1.0, loop_instructions=1.08, bytes=1.05)


def spiral(tick, method):
    """A cubic spiral and a network, 21 saved rows."""
    swirl = np.array([[-0.1, -2.0], [2.0, -0.1]])

    def loss(layers):
        prob = hx.ODEProblem(lambda u, p, t: tick(swirl @ u**3 + mlp(p, u)), jnp.array([2.0, 0.0]), (0.0, 3.0), layers)
        saves = np.linspace(0.0, 3.0, 21)
        return jnp.sum(hx.solve(prob, saveat=saves, rtol=1e-6, atol=1e-6, max_steps=256, sensealg=method).us ** 2)

    return loss, wave_mlp((2, 50, 2))


def jumps(tick, method):
    """A jump every 0.1 with both its sides saved."""

    def rhs(u, p, t):
        return tick(jnp.concatenate([mlp(p, u), jnp.zeros(2)]))

    def loss(layers):
        callback = hx.PeriodicCallback(lambda u, p, t: jnp.concatenate([u[:2], -3 * u[:2]]), 0.1, initial_affect=True)
        prob = hx.ODEProblem(rhs, jnp.array([2.0, 0.0, 0.0, 0.0]), (0.0, 1.0), layers, callback=callback)
        return jnp.sum(hx.solve(prob, rtol=1e-6, atol=1e-6, max_steps=256, sensealg=method).us ** 2)

    return loss, wave_mlp((4, 50, 2))


def lanes(tick, method):
    """Lorenz in 64 lanes."""

    def rhs(u, p, t):
        return tick(jnp.stack([10.0 * (u[1] - u[0]), p * u[0] - u[1] - u[0] * u[2], u[0] * u[1] - 8 / 3 * u[2]]))

    def one(p):
        prob = hx.ODEProblem(rhs, jnp.array([1.0, 0.0, 0.0]), (0.0, 1.0), p)
        return hx.solve(prob, rtol=1e-8, atol=1e-8, max_steps=256, sensealg=method).us[-1]

    return lambda p: jnp.sum(jax.vmap(one)(p) ** 2), jnp.linspace(20.0, 30.0, 64)


CASES = {
    "spiral, discrete": (spiral, 2, hx.DiscreteAdjoint()),
    "spiral, quadrature": (spiral, 2, hx.QuadratureAdjoint()),
    "jumps, discrete": (jumps, 4, hx.DiscreteAdjoint()),
    "64 lanes, discrete": (lanes, 3, hx.DiscreteAdjoint()),
}


TEXT = """
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  ROOT %sum = f32[] add(f32[] %a, f32[] %a)
}

%inner (x: f32[2]) -> f32[2] {
  %x = f32[2]{0} parameter(0)
  ROOT %y = f32[2]{0} fusion(f32[2]{0} %x), kind=kLoop, calls=%fused
}

%body (s: (s32[], f32[2])) -> (s32[], f32[2]) {
  %s = (s32[], f32[2]{0}) parameter(0)
  %u = f32[2]{0} get-tuple-element((s32[], f32[2]{0}) %s), index=1
  %w = f32[2]{0} while(f32[2]{0} %u), condition=%less, body=%inner
  %r = f32[] reduce(f32[2]{0} %w, f32[] %zero), dimensions={0}, to_apply=%add
  %c = f32[2]{0} call(f32[2]{0} %w), to_apply=%inner
  ROOT %t = (s32[], f32[2]{0}) tuple(s32[] %i, f32[2]{0} %c)
}

ENTRY %main (p: f32[2]) -> f32[2] {
  %p = f32[2]{0} parameter(0)
  ROOT %loop = (s32[], f32[2]{0}) while((s32[], f32[2]{0}) %p), condition=%less, body=%body
}
"""


def test_instructions_of_loops_are_those_that_run_in_them():
    """The body: a loop, a reduction and a call with the fusion in it; the inner body: a fusion."""
    assert hlo.loop_instructions(TEXT) == (2, 4 + 1)


def check(name, counted):
    if RECORD:
        whole = json.loads(FILE.read_text()) if FILE.exists() else {}
        cases = whole.get("cases", {})
        cases[name] = cases.get(name, {}) | counted
        FILE.write_text(json.dumps(dict(jaxlib=version("jaxlib"), cases=cases), indent=1, sort_keys=True) + "\n")
        return
    before = RECORDED["cases"][name]
    more = [f"{k}: {before[k]} -> {n}" for k, n in counted.items() if n > SLACK[k] * before[k]]
    assert not more, f"{name} does more work than recorded ({', '.join(more)}); see the head of this file"


# each count is a compilation of its own; of one lane, test_reverse_work.py bounds what the discrete adjoint evaluates
@pytest.mark.parametrize("name", ["spiral, quadrature", "64 lanes, discrete"])
def test_a_gradient_evaluates_no_more_than_recorded(name):
    problem, n, method = CASES[name]
    counter = Counter(n)
    loss, params = problem(counter.tick, method)
    assert np.all(np.isfinite(jax.flatten_util.ravel_pytree(jax.jit(jax.grad(loss))(params))[0]))
    jax.effects_barrier()
    assert counter.forward > 0 and counter.reverse > 0
    check(name, dict(evaluations=counter.forward, pullbacks=counter.reverse))


@pytest.mark.skipif(not RECORD and RECORDED["jaxlib"] != version("jaxlib"), reason="work.json was recorded with another jaxlib")
@pytest.mark.parametrize("name", CASES)
def test_a_compiled_gradient_is_no_larger_than_recorded(name):
    problem, _, method = CASES[name]
    loss, params = problem(lambda du: du, method)
    counted = hlo.work(jax.jit(jax.grad(loss)).lower(params))
    assert min(counted.values()) > 0
    check(name, counted)
