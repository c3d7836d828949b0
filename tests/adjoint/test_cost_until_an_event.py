"""A cost that is integrated until an event ends the solve: nothing of what would follow moves with the event's time.

u' = -p0 u from 1, until u = c: tau = ln(1/c) / p0, and the cost int p1 u dt = p1 (1 - c) / p0, whatever the affect does.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from methods import ALL

import hybridax as hx

P = np.array([0.7, 1.5, 0.4])  # rate, price, threshold


@pytest.mark.parametrize("method", ALL)
def test_the_cost_until_an_event_has_the_gradient_of_the_closed_form(method):
    callback = hx.ContinuousCallback(lambda u, p, t: u[0] - p[2], lambda u, p, t: 3 * u + p[1], terminate=True)
    prob = hx.ODEProblem(
        lambda u, p, t: -p[0] * u, jnp.ones(1), (0.0, 4.0), jnp.asarray(P), callback=callback,
        running_cost=lambda u, p, t: p[1] * u[0], rtol=1e-10, atol=1e-10, max_steps=200,
    )  # fmt: skip
    cost = lambda p: hx.solve(prob, p=p, sensealg=ALL[method]).cost
    value, gradient = jax.jit(jax.value_and_grad(cost))(prob.p)
    rate, price, c = P
    assert float(value) == pytest.approx(price * (1 - c) / rate, rel=1e-8)
    np.testing.assert_allclose(gradient, [-price * (1 - c) / rate**2, (1 - c) / rate, -price / rate], rtol=1e-7)
