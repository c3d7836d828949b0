"""DiscreteAdjoint is the derivative of the numbers that solve returned: replayed in NumPy they agree to 1e-9.

The step sequence is frozen and everything else differentiated by a complex step, at tolerances where the solution
itself is wrong by a percent.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from problems.case import relative_error
from problems.networks import mlp, wave_mlp

import hybridax as hx

U0 = np.array([1.0, -0.5, 0.3])
SPAN = (0.0, 3.0)
SIZES = [4, 6, 3]
COUNT = 4 * 6 + 6 + 6 * 3 + 3
SAVES = [0.0, 0.11, 0.75, 1.2, 1.2000001, 1.99, 2.4, 3.0]
LOOSE = {"rtol": 1e-2, "atol": 1e-2}


def unravel(p):
    """(W0, b0), (W1, b1) and the gain of the jump; works on arrays of either library."""
    at, layers = 0, []
    for n_in, n_out in zip(SIZES[:-1], SIZES[1:], strict=True):
        weight = p[at : at + n_in * n_out].reshape(n_out, n_in)
        at += n_in * n_out
        layers.append((weight, p[at : at + n_out]))
        at += n_out
    return layers, p[at:]


def rhs(xp):
    def f(u, p, t):
        layers, _ = unravel(p)
        t = xp.asarray(t) + 0.0 * u[:1]
        return mlp(layers, xp.concatenate([u, xp.sin(3 * t)]), xp.tanh) - u

    return f


def jump(xp):
    def affect(u, p, t):
        _, gain = unravel(p)
        return u * gain + xp.asarray(0.5) * xp.sin(u[::-1] + t)

    return affect


def change(xp):
    def affect(u, p, t):
        return jump(xp)(u, p, t), p * 0.9 + 0.02 * xp.sin(p) * u[0]

    return affect


P = np.concatenate([np.concatenate([np.ravel(x) for layer in wave_mlp(SIZES) for x in layer]), [0.8, -1.1, 0.6]])
assert P.size == COUNT + 3

CALLBACKS = {
    "no events": None,
    "jumps": hx.PresetTimeCallback([0.0, 0.75, 1.2, 3.0], jump(jnp), save_positions=(True, True)),
    "jumps that change parameters": hx.PresetTimeCallback(
        [0.75, 1.2, 2.4], change(jnp), affects_params=True, save_positions=(False, True)
    ),
}
NUMPY_AFFECTS = {"jumps": lambda u, p, t: (jump(np)(u, p, t), p), "jumps that change parameters": change(np)}


def weights(rows, n):
    i, j = np.meshgrid(np.arange(rows), np.arange(n), indexing="ij")
    return np.sin(1.0 + 2 * i + 3 * j)


@pytest.mark.parametrize("name", CALLBACKS)
@pytest.mark.parametrize("tolerance", [1e-2, 1e-5], ids="rtol={}".format)
def test_gradient_equals_that_of_the_frozen_steps(tolerance, name):
    options = {"callback": CALLBACKS[name], "rtol": tolerance, "atol": tolerance}
    prob = hx.ODEProblem(rhs(jnp), jnp.asarray(U0), SPAN, jnp.asarray(P))
    steps = hx.solve(prob, save_everystep=True, **options)
    ts = np.unique(np.asarray(steps.ts)[np.asarray(steps.valid)])
    assert ts.size < 60
    events = np.asarray(steps.events.times)
    save = (False, False) if CALLBACKS[name] is None else CALLBACKS[name].save_positions
    jumps = [reference.Jump(float(t), NUMPY_AFFECTS[name], save) for t in events]

    def replayed(x):
        rows = reference.replay(rhs(np), x[:3], x[3:], ts, SAVES, jumps)
        us = np.stack([row.u for row in rows])
        return np.sum(weights(*us.shape) * us**2)

    @jax.jit
    def solved(u0, p):
        sol = hx.solve(prob, u0=u0, p=p, saveat=SAVES, sensealg=hx.DiscreteAdjoint(), **options)
        return jnp.sum(weights(*sol.us.shape) * sol.us**2)

    x = np.concatenate([U0, P])
    value, (grad_u0, grad_p) = jax.value_and_grad(solved, (0, 1))(prob.u0, prob.p)
    exact = reference.gradient(replayed, x)
    assert float(value) == pytest.approx(replayed(x), rel=1e-12)
    assert relative_error(grad_u0, exact[:3]) < 1e-9
    assert relative_error(grad_p, exact[3:]) < 1e-9


def test_central_differences_of_equal_steps_agree_to_1e9():
    """Equal steps do not depend on the parameters, so that differences of the library itself may be formed."""
    prob = hx.ODEProblem(rhs(jnp), jnp.asarray(U0), SPAN, jnp.asarray(P))
    solver = hx.Tsit5(adaptive=False)

    @jax.jit
    def loss(p):
        sol = hx.solve(prob, solver, p=p, dt0=0.37, saveat=SAVES, callback=CALLBACKS["jumps"])
        return jnp.sum(weights(*sol.us.shape) * sol.us**2)

    gradient, h = np.asarray(jax.grad(loss)(prob.p)), 1e-3
    for k in (0, 17, COUNT + 1):
        e = h * np.eye(P.size)[k]
        at = [float(loss(P + c * e)) for c in (-3, -2, -1, 1, 2, 3)]
        difference = (-at[0] + 9 * at[1] - 45 * at[2] + 45 * at[3] - 9 * at[4] + at[5]) / (60 * h)
        assert abs(gradient[k] - difference) < 1e-9 * np.max(np.abs(gradient))


def test_p13_euler_has_an_exact_gradient():
    prob = hx.ODEProblem(lambda u, p, t: u, jnp.array([1.0]), (0.0, 1.0))
    value, gradient = jax.value_and_grad(lambda u: hx.solve(prob, hx.Euler(adaptive=False), u0=u, dt0=0.1).us[-1, 0])(prob.u0)
    assert float(value) == pytest.approx(1.1**10, rel=1e-12)
    assert float(gradient[0]) == pytest.approx(1.1**10, rel=1e-12)


def test_the_gradient_does_not_depend_on_how_steps_are_batched():
    prob = hx.ODEProblem(rhs(jnp), jnp.asarray(U0), SPAN, jnp.asarray(P), callback=CALLBACKS["jumps"], saveat=SAVES)

    def gradient(method):
        loss = lambda p: jnp.sum(hx.solve(prob, p=p, sensealg=method, **LOOSE).us ** 2)
        return jax.jit(jax.grad(loss))(prob.p)

    default = gradient(None)
    for chunk in (1, 64):
        np.testing.assert_allclose(gradient(hx.DiscreteAdjoint(chunk=chunk)), default, rtol=1e-11, atol=1e-13)
