"""Order conditions of every tableau, over rooted trees: steps, the embedded method and the interpolant."""

import functools
import itertools

import numpy as np
import pytest
from hybridax.solvers.explicit import RK4, Euler
from hybridax.solvers.tsit5 import TSIT5
from numpy.polynomial import Polynomial

TABLEAUX = {"Euler": Euler.tableau, "RK4": RK4.tableau, "Tsit5": TSIT5}
EACH = pytest.mark.parametrize("name", TABLEAUX)


@functools.lru_cache(maxsize=None)
def forests(size):
    """All multisets of rooted trees with ``size`` nodes together; a tree is the tuple of its subtrees."""
    if size == 0:
        return [()]
    out = set()
    for first in range(1, size + 1):
        for tree, rest in itertools.product(forests(first - 1), forests(size - first)):
            out.add(tuple(sorted((tree, *rest))))
    return sorted(out)


def trees(order):
    return forests(order - 1)


def order_of(tree):
    return 1 + sum(order_of(child) for child in tree)


def density(tree):
    return order_of(tree) * np.prod([density(child) for child in tree])


def elementary_weight(tree, a):
    """The vector whose product with the weights must be 1 / density."""
    return np.prod([a @ elementary_weight(child, a) for child in tree], axis=0) * np.ones(len(a))


def conditions(a, b, order):
    """The largest defect of the conditions of exactly this order."""
    return max(abs(b @ elementary_weight(tree, a) - 1 / density(tree)) for tree in trees(order))


def test_the_number_of_trees_is_that_of_the_literature():
    assert [len(trees(n)) for n in range(1, 7)] == [1, 1, 2, 4, 9, 20]


@EACH
def test_a_step_meets_the_conditions_of_its_order_and_not_of_the_next(name):
    tableau = TABLEAUX[name]
    for order in range(1, tableau.order + 1):
        assert conditions(tableau.a, tableau.a[-1], order) < 1e-12
    assert conditions(tableau.a, tableau.a[-1], tableau.order + 1) > 1e-6


@EACH
def test_stage_times_are_row_sums(name):
    np.testing.assert_allclose(TABLEAUX[name].a.sum(1), TABLEAUX[name].c, atol=1e-14)


def test_the_embedded_method_of_tsit5_has_order_four_and_not_five():
    embedded = TSIT5.a[-1] - TSIT5.e
    assert max(conditions(TSIT5.a, embedded, order) for order in range(1, 5)) < 1e-12
    assert conditions(TSIT5.a, embedded, 5) > 1e-6


@pytest.mark.parametrize("name, order", [("Euler", 1), ("RK4", 3), ("Tsit5", 4)])
def test_the_interpolant_meets_the_conditions_of_its_order_at_every_fraction(name, order):
    tableau = TABLEAUX[name]
    for theta in (0.1, 0.5, 0.77, 1.0):
        weights = tableau.dense @ theta ** np.arange(1, tableau.dense.shape[1] + 1)
        for n in range(1, order + 1):
            for tree in trees(n):
                defect = weights @ elementary_weight(tree, tableau.a) - theta**n / density(tree)
                assert abs(defect) < 1e-12


@EACH
def test_the_interpolant_ends_at_the_step(name):
    tableau = TABLEAUX[name]
    np.testing.assert_allclose(tableau.dense.sum(1), tableau.a[-1], atol=1e-13)


@pytest.mark.parametrize("name", ["RK4", "Tsit5"])
def test_the_interpolant_has_the_slopes_of_both_ends(name):
    tableau = TABLEAUX[name]
    slopes = [Polynomial([0.0, *row]).deriv() for row in tableau.dense]
    first, last = np.eye(len(slopes))[[0, -1]]
    np.testing.assert_allclose([s(0.0) for s in slopes], first, atol=1e-12)
    np.testing.assert_allclose([s(1.0) for s in slopes], last, atol=1e-12)
