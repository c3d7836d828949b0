"""Cases S1 to S9, M2, V3 and P1: smooth problems, within 1e-6 of gold.

Cases that differ in numbers alone share a compiled solve; the number of rows is part of it. One case for each right-hand
side runs by every method: S1 and S3, S7, V3 (a matrix), P1 with three times. The others add a number of rows to these, and
run by the discrete method and by continuous ones in turn.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from methods import KINDS, METHODS
from problems import smooth
from problems.case import flat, relative_error
from problems.evaluate import evaluate, gradients

import hybridax as hx

NAMED = {case.name: case for case in smooth.SMOOTH}
EVERY = pytest.mark.parametrize("method", METHODS)
FEW = {
    "S2 [0.5, 1.0]": ["discrete", "backsolve"],
    "S2 [0.0, 0.5, 1.0]": ["discrete", "backsolve", "gauss"],
    "S2 [0.5, 1.0, 10.0]": ["discrete", "backsolve", "gauss"],
    "S2 [10.0, 0.5, 1.0]": ["discrete", "backsolve", "gauss"],
    "S8 none": ["discrete", "interpolating", "quadrature"],
    "S8 [10.0]": ["discrete", "quadrature"],
    "S9": ["discrete", "gauss"],
    "M2 by number": ["discrete", "backsolve_without_checkpoints"],
    "M2 by array": [*METHODS],
}
BY = [(name, method) for name in NAMED for method in FEW.get(name, KINDS if name == "V3" else METHODS)]


def test_every_choice_of_methods_names_a_case():
    assert {*FEW, "V3"} <= set(NAMED)


@pytest.mark.parametrize("name, method", BY)
def test_gradient_is_within_1e6_of_gold(name, method):
    case = NAMED[name]
    got, gold = evaluate(case, method), case.gold["sum"]
    assert got.rows == case.rows
    assert got.loss == pytest.approx(gold.loss, rel=1e-7)
    assert relative_error(got.grad_u0, gold.grad_u0) < 1e-6
    assert relative_error(got.grad_p, gold.grad_p) < 1e-6


def test_s1_methods_agree_pairwise_within_1e7_at_tolerance_1e12():
    results = [evaluate(smooth.S1, method, tolerance=1e-12) for method in METHODS]
    for other in results[1:]:
        assert relative_error(other.grad_u0, results[0].grad_u0) < 1e-7
        assert relative_error(other.grad_p, results[0].grad_p) < 1e-7


@EVERY
def test_s7_is_within_1e8_of_gold_at_tolerance_1e12(method):
    got, gold = evaluate(smooth.S7, method, tolerance=1e-12), smooth.S7.gold["sum"]
    assert relative_error(got.grad_u0, gold.grad_u0) < 1e-8
    assert relative_error(got.grad_p, gold.grad_p) < 1e-8


@pytest.mark.parametrize("method", FEW["S2 [0.5, 1.0]"])
def test_s2_a_loss_at_the_start_adds_its_own_derivative_and_nothing_else(method):
    without, with_start = (evaluate(smooth.S2[name], method) for name in ("{0.5, 1}", "{0, 0.5, 1}"))
    np.testing.assert_allclose(with_start.grad_u0 - without.grad_u0, [-1.0, -1.0], rtol=0, atol=1e-9)
    np.testing.assert_allclose(with_start.grad_p, without.grad_p, rtol=0, atol=1e-9)


@pytest.mark.parametrize("method", FEW["S2 [10.0, 0.5, 1.0]"])
def test_s2_unsorted_save_times_give_the_same_as_sorted(method):
    shuffled, ordered = evaluate(smooth.S2_UNSORTED, method), evaluate(smooth.S2["{0.5, 1, 10}"], method)
    assert shuffled.loss == pytest.approx(ordered.loss, rel=1e-13)
    np.testing.assert_allclose(shuffled.grad_u0, ordered.grad_u0, rtol=1e-12)
    np.testing.assert_allclose(shuffled.grad_p, ordered.grad_p, rtol=1e-12)


@pytest.mark.parametrize("method", ["discrete"])
def test_s3_gradient_of_u0_alone_is_the_same_as_beside_p(method):
    case = smooth.S3

    def loss(u0):
        return case.losses["sum"](case.solve(u0, sensealg=METHODS[method]), case.problem.p)

    assert relative_error(jax.grad(loss)(case.problem.u0), case.gold["sum"].grad_u0) < 1e-6


@pytest.mark.parametrize("method", FEW["S8 [10.0]"])
def test_s8_both_ways_of_saving_the_end_agree_and_are_not_zero(method):
    none, array = (evaluate(smooth.S8[name], method) for name in ("none", "[10.0]"))
    assert np.all(none.grad_u0 != 0) and np.all(none.grad_p != 0)
    np.testing.assert_allclose(none.grad_u0, array.grad_u0, rtol=1e-9)
    np.testing.assert_allclose(none.grad_p, array.grad_p, rtol=1e-9)


def test_s9_the_last_row_is_exactly_the_end_with_and_without_differentiation():
    case = smooth.S9
    plain = case.solve()
    _, _, ts = jax.vjp(lambda p: (lambda sol: (sol.us, sol.ts))(case.solve(p=p)), case.problem.p, has_aux=True)
    for rows in (plain.ts, ts):
        assert rows.shape == (6,)
        assert float(rows[-1]) == 10.0


@pytest.mark.parametrize("method", FEW["M2 by number"])
def test_m2_a_number_for_saveat_gives_the_same_as_its_array(method):
    number, array = (evaluate(smooth.M2[name], method) for name in ("by number", "by array"))
    np.testing.assert_allclose(number.grad_p, array.grad_p, rtol=1e-12)


P1_FEW = {"[1, 7]": ["quadrature", "discrete"], "start and end": ["quadrature", "discrete"], "[0.3, 7, 9.5]": KINDS}
P1_BY = [(name, method) for name in smooth.P1 for method in P1_FEW.get(name, ["gauss", "backsolve"])]


@pytest.mark.parametrize("name, method", P1_BY)
def test_p1_gradient_is_within_1e5_of_gold(name, method):
    case = smooth.P1[name]
    got, gold = evaluate(case, method), case.gold["sum"]
    assert got.rows == case.rows
    assert relative_error(got.grad_u0, gold.grad_u0) < 1e-5
    assert relative_error(got.grad_p, gold.grad_p) < 1e-5


@pytest.mark.parametrize("method, order", [("interpolating", "vmap of grad"), ("discrete", "grad of vmap")])
def test_p1_two_copies_under_vmap_get_the_same_gradient_twice_and_integers_get_none(method, order):
    case = smooth.P1["[1, 7]"]
    u0, p = jax.tree.map(lambda x: jnp.stack([x, x]), (case.problem.u0, case.problem.p))

    def loss(u0, p):
        return case.losses["sum"](case.solve(u0, p, sensealg=METHODS[method]), p)

    inside = jax.vmap(jax.grad(loss, (0, 1), allow_int=True))
    outside = jax.grad(lambda u, q: jnp.sum(jax.vmap(loss)(u, q)), (0, 1), allow_int=True)
    grad_u0, grad_p = jax.jit(inside if order == "vmap of grad" else outside)(u0, p)
    gold = case.gold["sum"]
    assert grad_p["a"].dtype == jax.dtypes.float0
    for copy in range(2):
        assert relative_error(grad_u0[copy], gold.grad_u0) < 1e-5
        assert relative_error([grad_p["b"][copy], grad_p["q"][copy]], gold.grad_p) < 1e-5


@pytest.mark.parametrize("method", KINDS)
def test_v3_gradient_of_a_matrix_has_its_shape(method):
    _, (_, gradient) = gradients(smooth.V3, method)
    assert gradient.shape == (4, 26)


@pytest.mark.parametrize("method", ["quadrature"])
def test_tighter_reverse_tolerances_bring_the_gradient_closer_to_the_discrete_one(method):
    case, kind = smooth.S1, type(METHODS[method])

    def gradient(tolerance):
        sensealg = METHODS["discrete"] if tolerance is None else kind(rtol=tolerance, atol=tolerance)

        def loss(p):
            return case.losses["sum"](case.solve(p=p, sensealg=sensealg, rtol=1e-10, atol=1e-10), p)

        return flat(jax.grad(loss)(case.problem.p))

    exact = gradient(None)
    loose, tight = (relative_error(gradient(tolerance), exact) for tolerance in (1e-4, 1e-9))
    assert tight < 1e-5
    assert tight < loose / 10


def test_sensealg_none_is_the_discrete_adjoint():
    case = smooth.S1

    def gradient(sensealg):
        loss = lambda p: case.losses["sum"](case.solve(p=p, sensealg=sensealg), p)
        return jax.grad(loss)(case.problem.p)

    np.testing.assert_array_equal(gradient(None), gradient(hx.DiscreteAdjoint()))
