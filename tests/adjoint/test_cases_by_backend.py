"""Cases S7, V1, V3 and S13 through every VJP backend, within 1e-8 of gold.

Five cases (S13 from both of its starts) by four backends, and the methods go along the diagonals: every backend meets every
case and every method. The fifth diagonal of S13 at rest would be the discrete method, whose gradient of steps as long as the
segments is exact for these steps and 1e-3 from gold (test_known_event_cases.py); it meets the other start.

V1 is S7 with each backend in its other form. Differences are held to the same 1e-8: these right-hand sides are polynomials
of second degree at most in every single entry of u and p, for which central differences are exact but for rounding.
"""

import dataclasses

import numpy as np
import pytest
from methods import KINDS
from problems.case import Case, relative_error
from problems.evaluate import evaluate
from problems.products import PRODUCTS

import hybridax as hx

#: solver tolerance, at which every method is within 1e-8 of gold on these cases
TIGHT = 1e-12

#: right-hand side and backend of a problem, from its products in JAX and in NumPy
BACKENDS = {
    "jax": lambda x, host: (x.rhs, hx.JaxVJP()),
    "hand-written": lambda x, host: (x.rhs, hx.HandWrittenVJP(vjp_u=x.vjp_u, vjp_p=x.vjp_p)),
    "host": lambda x, host: (hx.HostVJP(host.write, vjp_u=host.vjp_u, vjp_p=host.vjp_p), None),
    "differences": lambda x, host: (x.rhs, hx.FiniteDifferenceVJP()),
}
#: ... in their other forms: both products by one function, a right-hand side that returns, a step of one's own
OTHER_FORMS = {
    "jax": lambda x, host: (x.rhs, None),
    "hand-written": lambda x, host: (x.rhs, hx.HandWrittenVJP(vjp=x.vjp)),
    "host": lambda x, host: (hx.HostVJP(host.rhs, host.vjp, in_place=False), None),
    "differences": lambda x, host: (x.rhs, hx.FiniteDifferenceVJP(step=1e-4)),
}


def through(name: str, backend: str) -> Case:
    """A case with its derivative from a backend."""
    case, in_jax, in_numpy = PRODUCTS[name]
    f, vjp = (OTHER_FORMS if name == "V1" else BACKENDS)[backend](in_jax, in_numpy)
    return dataclasses.replace(case, problem=case.problem.remake(f=f, vjp=vjp))


DIAGONALS = [
    pytest.param(name, backend, KINDS[(i + j) % len(KINDS)], id=f"{name}-{backend}-{KINDS[(i + j) % len(KINDS)]}")
    for i, name in enumerate(PRODUCTS)
    for j, backend in enumerate(BACKENDS)
]


@pytest.mark.parametrize("name, backend, method", DIAGONALS)
def test_gradient_is_within_1e8_of_gold(name, backend, method):
    case = through(name, backend)
    got, gold = evaluate(case, method, tolerance=TIGHT), case.gold["sum"]
    assert got.rows == case.rows
    assert got.loss == pytest.approx(gold.loss, rel=1e-9)
    n = gold.grad_u0.size  # S13: its third component is an index
    assert relative_error(got.grad_u0[:n], gold.grad_u0) < 1e-8
    assert relative_error(got.grad_p, gold.grad_p) < 1e-8
    np.testing.assert_array_equal(got.grad_u0[n:], 0.0)
