"""check_vjp: right products pass in every structure and precision; a wrong one is named, with both numbers."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hybridax as hx


class Pair(NamedTuple):
    first: Any
    second: Any


U, T = {"x": jnp.array([0.4, -1.2]), "z": jnp.array(0.5 - 0.3j, complex)}, 0.7
P = Pair(
    {"rate": jnp.array([0.3, 0.9]), "count": 3, "label": "x", "on": jnp.array(True)},
    [jnp.array(1.1 + 0.2j, complex), None],
)


def f(u, p, t):
    x = p.first["rate"] * jnp.sin(u["x"]) * p.first["count"] + t**2 * jnp.abs(u["z"]) * u["x"]
    return {"x": x, "z": p.second[0] * u["z"] ** 2 + jnp.conj(u["z"]) * jnp.sum(u["x"]).astype(complex)}


def products(lam, u, p, t):
    """By hand: one for each real part; the complex ones by JAX."""
    du = jax.vjp(lambda v: f(v, p, t), u)[1](lam)[0]
    return du, Pair({**p.first, "rate": lam["x"] * jnp.sin(u["x"]) * p.first["count"]}, [lam["z"] * u["z"] ** 2, None])


def by_hand(wrong=""):
    """The products above, with an error of a hundredth of a percent in one leaf."""
    off = lambda name, x: x * (1.0001 if name == wrong else 1.0)

    class ByHand:
        def dress(self, f):
            def dressed(u, p, t):
                @jax.custom_vjp
                def call(u, rate, w, t):
                    return f(u, Pair({**p.first, "rate": rate}, [w, None]), t)

                def backward(point, lam):
                    u, rate, w, t = point
                    du, dp = products(lam, u, Pair({**p.first, "rate": rate}, [w, None]), t)
                    dt = jnp.sum(lam["x"] * 2 * t * jnp.abs(u["z"]) * u["x"])
                    du = {name: off(f"u['{name}']", x) for name, x in du.items()}
                    return du, off("p.first['rate']", dp.first["rate"]), off("p.second[0]", dp.second[0]), off("t", dt)

                call.defvjp(lambda *x: (call(*x), x), backward)
                return call(u, p.first["rate"], p.second[0], t)

            return dressed

    return ByHand()


LEAVES = ["u['x']", "u['z']", "p.first['rate']", "p.second[0]", "t"]


def test_right_products_pass_and_every_floating_point_leaf_is_compared():
    for backend in (hx.JaxVJP(), by_hand()):
        report = hx.check_vjp(f, backend, U, P, T)
        assert report and report.ok and report.first_mismatch is None
        assert [leaf.name for leaf in report.leaves] == LEAVES
        assert all(leaf.error < 1e-9 for leaf in report.leaves)


@pytest.mark.parametrize("leaf", LEAVES)
def test_the_leaf_whose_product_is_wrong_is_named_with_both_numbers(leaf):
    with pytest.raises(hx.VJPMismatch) as error:
        hx.check_vjp(f, by_hand(leaf), U, P, T)
    report = error.value.report
    assert [x.name for x in report.leaves if not x.ok] == [leaf]
    bad = report.first_mismatch
    assert bad.got / bad.expected == pytest.approx(1.0001, rel=1e-7)
    assert f"{bad.got:.6g}" in str(error.value) and f"{bad.expected:.6g}" in str(error.value)
    assert bad.place in str(error.value) and "DIFFERS" in str(report)
    assert not hx.check_vjp(f, by_hand(leaf), U, P, T, throw=False)


def test_the_entry_that_is_wrong_is_found_in_its_leaf():
    backend = hx.HandWrittenVJP(vjp_p=lambda lam, u, p, t: lam * u * jnp.array([1.0, 1.0, 0.0]))
    bad = hx.check_vjp(lambda u, p, t: p * u, backend, jnp.array([1.0, 2.0, 3.0]), jnp.ones(3), throw=False).first_mismatch
    assert (bad.place, bad.got) == ("p[2]", 0.0)
    assert bad.expected != 0


def decay(u, p, t):
    return -p * u**3


def slightly_off(lam, u, p, t):
    return -lam * p * 3 * u**2 * np.float32(1.01)


@pytest.mark.parametrize("x64", [True, False])
def test_float32_is_checked_with_and_without_x64(x64):
    with jax.enable_x64(x64):
        point = jnp.array([0.5, 2.0], np.float32), jnp.array(0.3, np.float32), 0.0
        assert hx.check_vjp(decay, hx.JaxVJP(), *point)
        held = jnp.array([1.0, 2.0], np.float32)  # keeps f in float32, where promotion is strict
        assert hx.check_vjp(lambda u, p, t: held * decay(u, p, t), hx.JaxVJP(), *point)
        bad = hx.check_vjp(decay, hx.HandWrittenVJP(vjp_u=slightly_off), *point, throw=False)
        assert bad.first_mismatch.name == "u"
    assert jax.config.jax_enable_x64


def test_where_differences_do_not_settle_nothing_passes():
    report = hx.check_vjp(lambda u, p, t: jnp.sqrt(u - 1.0), hx.JaxVJP(), jnp.ones(1), throw=False)
    assert not report
    with pytest.raises(hx.VJPMismatch, match="settle"):
        hx.check_vjp(lambda u, p, t: jnp.sqrt(u - 1.0), hx.HandWrittenVJP(vjp_u=lambda lam, *_: lam), jnp.ones(1))


def test_a_report_is_the_same_every_time_and_tolerance_is_the_caller_s():
    first, second = (hx.check_vjp(f, hx.JaxVJP(), U, P, T, seed=4) for _ in range(2))
    assert first.leaves == second.leaves
    assert hx.check_vjp(f, by_hand("t"), U, P, T, rtol=1e-3)
    assert not hx.check_vjp(f, hx.JaxVJP(), U, P, T, rtol=0.0, atol=-1.0, throw=False)


@pytest.mark.parametrize("vjp", [None, hx.JaxVJP, lambda f: f])
def test_what_is_no_backend_is_refused(vjp):
    with pytest.raises(TypeError, match="backend"):
        hx.check_vjp(f, vjp, U, P, T)


def far_apart(u, p, t):
    return jnp.stack([1e8 * u[0] * p[0], 1e-8 * u[1] * p[1]])


@pytest.mark.parametrize("part", ["u", "p"])
def test_a_wrong_entry_far_smaller_than_the_others_is_found(part):
    u, p = jnp.array([1.1, 0.8]), jnp.array([0.9, 1.2])
    product = lambda of: lambda factor: lambda lam, u, p, t: lam * of(u, p) * jnp.array([1e8, factor * 1e-8])
    make = {"u": product(lambda u, p: p), "p": product(lambda u, p: u)}[part]
    backend = lambda factor: hx.HandWrittenVJP(**{f"vjp_{part}": make(factor)})
    assert hx.check_vjp(far_apart, backend(1.0), u, p)
    assert hx.check_vjp(far_apart, hx.JaxVJP(), u, p)
    bad = hx.check_vjp(far_apart, backend(2.0), u, p, throw=False).first_mismatch
    assert bad.place == f"{part}[1]" and bad.got / bad.expected == pytest.approx(2.0, rel=1e-6)


def test_small_entries_of_one_component_are_compared_beside_their_like():
    f = lambda u, p, t: p[0] * u + 1e-9 * p[1] * jnp.sin(u)
    backend = lambda wrong: hx.HandWrittenVJP(
        vjp_p=lambda lam, u, p, t: jnp.stack([jnp.sum(lam * u), wrong * 1e-9 * jnp.sum(lam * jnp.sin(u))])
    )
    u, p = jnp.array([1.1, 0.8]), jnp.array([0.9, 1.2])
    assert hx.check_vjp(f, backend(1.0), u, p)
    assert hx.check_vjp(f, backend(1.01), u, p, throw=False).first_mismatch.place == "p[1]"


def test_right_products_of_entries_that_cancel_pass():
    """Entries that are rounding and nothing else, and components at their zero."""
    w = jax.random.normal(jax.random.key(0), (6, 6))

    def f(u, p, t):
        return (p["w"] + 1e-6 * w) @ jnp.tanh(u) - p["w"] @ jnp.tanh(u) + 1e4 * (u - p["rest"]) ** 2 * (u - 1.0)

    for seed in range(10):
        u = jnp.array([1.0, 0.5, -2.0, 1e-7, 0.0, 3.0])
        assert hx.check_vjp(f, hx.JaxVJP(), u, {"w": w, "rest": u}, seed=seed)
        with jax.enable_x64(False):
            single = jax.tree.map(lambda x: x.astype(np.float32), (u, {"w": w, "rest": u}))
            g = lambda u, p, t: p["w"] @ jnp.tanh(u) * (u - p["rest"])
            assert hx.check_vjp(g, hx.JaxVJP(), *single, seed=seed)


def test_a_float32_leaf_leaves_the_tolerance_of_the_others_alone():
    u, p = jnp.array([1.1, 0.8]), {"a": jnp.array([0.9, 1.2]), "b": jnp.array(0.4, np.float32)}
    f = lambda u, p, t: -p["a"] * u + p["b"].astype(float) * jnp.sin(u)

    def off(factor):
        product = lambda lam, u, p, t: {"a": -factor * lam * u, "b": jnp.sum(lam * jnp.sin(u)).astype(np.float32)}
        return hx.HandWrittenVJP(vjp_p=product)

    for g in (f, jax.jit(f)):
        report = hx.check_vjp(g, off(1.0), u, p)
        assert {x.name: x.tolerance for x in report.leaves} == {"u": 1e-6, "p['a']": 1e-6, "p['b']": 1e-3, "t": 1e-6}
        assert hx.check_vjp(g, off(1.0001), u, p, throw=False).first_mismatch.name == "p['a']"


def test_a_float64_leaf_whose_product_passes_float32_has_the_tolerance_of_float32():
    f = lambda u, p, t: {"x": (p.astype(np.float32) * u["x"].astype(np.float32)).astype(float), "y": -u["y"]}
    report = hx.check_vjp(f, hx.JaxVJP(), {"x": jnp.array([1.1, 0.8]), "y": jnp.array(2.0)}, jnp.array(0.7))
    assert {x.name: x.tolerance for x in report.leaves} == {"u['x']": 1e-3, "u['y']": 1e-6, "p": 1e-3, "t": 1e-6}
