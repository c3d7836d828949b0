"""The conformance kit refuses what is wrong, and says in which case. (What conforms is in the manual, which is run.)"""

import dataclasses

import equinox as eqx
import jax
import numpy as np
import pytest

import hybridax as hx
from hybridax.testing import ConformanceError, check_backend, check_sensealg


@dataclasses.dataclass(frozen=True)
class Forgetful:
    """Right for u, p and t; the arrays that f captures are lost in silence."""

    def dress(self, f):
        def dressed(u, p, t):
            arrays, static = eqx.partition(p, eqx.is_array)
            apply, held = jax.closure_convert(lambda u, q, t: f(u, eqx.combine(q, static), t), u, arrays, t)

            @jax.custom_vjp
            def call(u, q, t, held):
                return apply(u, q, t, *held)

            def backward(point, lam):
                u, q, t, held = point
                du, dq, dt = jax.vjp(lambda *x: apply(*x, *held), u, q, t)[1](lam)
                return du, dq, dt, None

            call.defvjp(lambda *point: (call(*point), point), backward)
            return call(u, arrays, t, held)

        return dressed


def test_a_backend_that_loses_captured_arrays_is_refused_in_that_case():
    others = ("vjp", "smooth", "preset", "periodic jump with initial affect, under")
    with pytest.raises(ConformanceError, match=r"(?s)captured arrays.*p\['capacity'\].*expected") as error:
        check_backend(Forgetful(), skip=others)
    assert isinstance(error.value, AssertionError) and "captured" in error.value.case


@dataclasses.dataclass(frozen=True)
class WrongState:
    """Made from the kit's right-hand side; its state part is a thousandth too large."""

    field: object

    def dress(self, f):
        return lambda u, p, t: f(jax.tree.map(lambda x: 1.0 * x + 0.001 * (x - jax.lax.stop_gradient(x)), u), p, t)


def test_a_wrong_product_is_refused_before_anything_is_solved():
    with pytest.raises(ConformanceError, match="vjp: the product at u") as error:
        check_backend(WrongState)
    assert error.value.case == "vjp"


class Unhashable:
    __hash__ = None

    def dress(self, f):
        return f


def test_what_is_no_backend_or_cannot_be_part_of_a_compiled_solve_is_refused():
    with pytest.raises(ConformanceError, match="hashable"):
        check_backend(Unhashable())
    for wrong in (None, hx.DiscreteAdjoint(), lambda field: field.f):
        with pytest.raises(TypeError, match="VJP backend"):
            check_backend(wrong)


@dataclasses.dataclass(frozen=True)
class WrongJumps(hx.DiscreteAdjoint):
    """Right where nothing jumps."""

    def reverse(self, problem):
        costate = super().reverse(problem)
        factor = 1.001 if problem.system.events else 1.0
        return costate._replace(mu=jax.tree.map(lambda x: x * np.asarray(factor, x.dtype), costate.mu))


def test_a_method_that_is_wrong_through_jumps_is_refused_at_the_first_jump():
    with pytest.raises(ConformanceError, match="closed form") as error:
        check_sensealg(WrongJumps(), skip=("smooth",))
    assert error.value.case.startswith("periodic jump with initial affect")


@dataclasses.dataclass(frozen=True)
class Fails(hx.SensitivityMethod):
    def reverse(self, problem):
        raise NotImplementedError("not yet")


def test_a_method_that_raises_is_refused_with_its_reason():
    with pytest.raises(ConformanceError, match="smooth.*NotImplementedError: not yet") as error:
        check_sensealg(Fails())
    assert isinstance(error.value.__cause__, NotImplementedError)
    with pytest.raises(TypeError, match="sensitivity method"):
        check_sensealg(hx.JaxVJP())
