"""HostVJP: what is called and how often, what a careless simulator may do, what is refused, and under which transforms."""

import pathlib
import threading

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from counting import compilations
from problems.case import relative_error

import hybridax as hx

U0, P = jnp.array([1.0, 0.7]), {"a": jnp.array([0.5, 1.2]), "b": jnp.array(0.3)}
OPTIONS = {"saveat": np.array([0.4, 1.0]), "rtol": 1e-8, "atol": 1e-8}


def f(u, p, t):
    return p["a"] * jnp.sin(u[::-1]) - p["b"] * u * u


class Simulator:
    """The same in NumPy, counting its calls."""

    def __init__(self, **changes):
        self.calls = {"rhs": 0, "vjp_u": 0, "vjp_p": 0}
        functions = dict(rhs=self.rhs, vjp_u=self.vjp_u, vjp_p=self.vjp_p)
        self.host = hx.HostVJP(**{**functions, **changes})

    def rhs(self, du, u, p, t):
        self.calls["rhs"] += 1
        du[...] = p["a"] * np.sin(u[..., ::-1]) - p["b"] * u * u

    def vjp_u(self, lam, u, p, t):
        self.calls["vjp_u"] += 1
        return (lam * p["a"])[..., ::-1] * np.cos(u) - 2 * p["b"] * u * lam

    def vjp_p(self, lam, u, p, t):
        self.calls["vjp_p"] += 1
        a = lam * np.sin(u[..., ::-1])
        return {"a": a if a.ndim == 1 else a.sum(0), "b": -np.sum(lam * u * u)}

    def counted(self, function, *args):
        """Calls in one run of a function that is compiled already."""
        jax.block_until_ready(function(*args))
        self.calls.update(dict.fromkeys(self.calls, 0))
        out = jax.block_until_ready(function(*args))
        return out, dict(self.calls)


def loss(fn, u0, p, method=None, **options):
    sol = hx.solve(hx.ODEProblem(fn, u0, (0.0, 1.0), p), sensealg=method, **{**OPTIONS, **options})
    return jnp.sum(jnp.array([[1.0, 2.0], [3.0, 4.0]]) * sol.us)


@pytest.fixture(scope="module")
def expected():
    return jax.jit(jax.grad(lambda *x: loss(f, *x), (0, 1)))(U0, P)


# ------------------------------------------------------------------ what is called
def test_calls_are_the_evaluations_reported_and_one_product_for_each_stage():
    s = Simulator()
    stats, calls = s.counted(jax.jit(lambda u0: hx.solve(hx.ODEProblem(s.host, u0, (0.0, 1.0), P), **OPTIONS).stats), U0)
    assert calls == {"rhs": int(stats.evaluations), "vjp_u": 0, "vjp_p": 0}
    # the state's gradient by transposed steps: six stages and the first slope (the sweep may start on an empty row), and
    # no product for the parameters
    inside = jax.jit(lambda u, p, t: s.host(u, p, t) + 0.0)
    _, calls = s.counted(jax.jit(jax.grad(lambda u0: loss(inside, u0, P))), U0)
    assert calls["vjp_u"] - 6 * int(stats.accepted) - 1 in (0, 6)
    assert calls["vjp_p"] == 0


def test_an_interpolating_adjoint_calls_the_right_hand_side_in_the_forward_solve_only():
    s = Simulator()
    method = hx.InterpolatingAdjoint()
    stats, _ = s.counted(jax.jit(lambda u0: hx.solve(hx.ODEProblem(s.host, u0, (0.0, 1.0), P), **OPTIONS).stats), U0)
    _, calls = s.counted(jax.jit(jax.grad(lambda p: loss(s.host, U0, p, method))), P)
    assert calls["rhs"] == int(stats.evaluations)
    assert calls["vjp_u"] > 0 and calls["vjp_p"] > 0


# ------------------------------------------------------------------ careless simulators
def test_keeping_and_overwriting_any_buffer_changes_nothing(expected):
    kept, out, part_u, part_p = [], np.empty(2), np.empty(2), {"a": np.empty(2), "b": np.empty(())}

    def scribble():
        for x in kept[-6:]:
            x.flags.writeable = True
            x[...] = 1e3

    def rhs(u, p, t):
        scribble()
        kept.extend([u, p["a"], p["b"], out])
        out[...] = p["a"] * np.sin(u[::-1]) - p["b"] * u * u
        return out

    def vjp(lam, u, p, t):
        scribble()
        kept.extend([lam, u, p["a"], part_u, part_p["a"]])
        part_u[...] = (lam * p["a"])[::-1] * np.cos(u) - 2 * p["b"] * u * lam
        part_p["a"][...], part_p["b"][...] = lam * np.sin(u[::-1]), -np.sum(lam * u * u)
        return part_u, part_p

    host = hx.HostVJP(rhs, vjp, in_place=False)
    got = jax.grad(lambda *x: loss(host, *x), (0, 1))(U0, P)
    assert relative_error(got, expected) < 1e-12


def test_one_buffer_for_two_arguments_or_two_results_is_no_alias():
    """u0 and p are one array, du is u in disguise, both parts are lam itself."""
    host = hx.HostVJP(lambda u, p, t: u, lambda lam, u, p, t: (lam, lam), in_place=False)
    x = jnp.array([1.0, 2.0])
    value, back = jax.vjp(lambda u, p: host(u, p, 0.0), x, x)
    np.testing.assert_array_equal(value, x)
    for part in back(jnp.array([3.0, 4.0])):
        np.testing.assert_array_equal(part, [3.0, 4.0])


def scale(du, u, p, t):
    du[...] = u


def identity(lam, u, p, t):
    return lam, {"a": np.zeros(2), "b": np.zeros(())}


def writes_u(du, u, p, t):
    u += 1.0
    du[...] = u


def writes_p(du, u, p, t):
    p["a"][0] = 1.0
    du[...] = u


def writes_lam(lam, u, p, t):
    lam *= 2.0
    return lam, p


@pytest.mark.parametrize(
    "rhs, vjp, name", [(writes_u, identity, "u"), (writes_p, identity, r"p\['a'\]"), (scale, writes_lam, "lam")]
)
def test_writing_to_an_input_names_it(rhs, vjp, name):
    host = hx.HostVJP(rhs, vjp)
    with pytest.raises(ValueError, match=f"wrote to its input {name}. Inputs are read-only"):
        jax.vjp(lambda u: host(u, P, 0.0), U0)[1](U0)


def partly(du, u, p, t):
    du[0] = u[0]


@pytest.mark.parametrize(
    "rhs, in_place, message",
    [
        (partly, True, r"did not write du\[1\]"),
        (lambda du, u, p, t: u, True, "returned ndarray although in_place=True"),
        (lambda u, p, t: None, False, "returned None"),
        (lambda u, p, t: u[:1], False, r"shape \(1,\); expected \(2,\)"),
        (lambda u, p, t: u.astype(np.float32), False, "dtype float32; expected float64"),
        (lambda u, p, t: {"x": u}, False, "is dict; expected an array"),
    ],
)
def test_a_wrong_result_says_what_is_wrong(rhs, in_place, message):
    host = hx.HostVJP(rhs, identity, in_place)
    with pytest.raises((TypeError, ValueError), match=message):
        host(U0, P, 0.0)


def test_a_wrong_product_says_what_is_wrong():
    cases = {
        "the pair": lambda *x: x[0],
        "the structure of p": lambda lam, u, p, t: (lam, [lam]),
        r"p part of vjp\['b'\] is NoneType": lambda lam, u, p, t: (lam, {"a": lam, "b": None}),
    }
    for message, vjp in cases.items():
        host = hx.HostVJP(scale, vjp)
        with pytest.raises((TypeError, ValueError), match=message):
            jax.vjp(lambda p, host=host: host(U0, p, 0.0), P)[1](U0)


def test_misuse_is_refused_before_anything_runs():
    with pytest.raises(TypeError, match=r"rhs must take \(du, u, p, t\)"):
        hx.HostVJP(lambda u, p, t: u, identity)
    with pytest.raises(ValueError, match="either vjp"):
        hx.HostVJP(scale, identity, vjp_u=identity)
    with pytest.raises(TypeError, match="brings its own right-hand side"):
        hx.solve(hx.ODEProblem(f, U0, (0.0, 1.0), P, vjp=Simulator().host))
    with pytest.raises(TypeError, match="'gain', which is traced"):

        def captured(gain):
            def rhs(du, u, p, t):
                du[...] = gain * u

            return jnp.sum(hx.HostVJP(rhs, identity)(U0, P, 0.0))

        jax.grad(captured)(jnp.array(2.0))


class ValveStuck(Exception):
    pass


def test_an_exception_of_the_simulator_passes_through_a_solve():
    raised = ValveStuck("valve 3")

    def rhs(du, u, p, t):
        if t > 0.5:
            raise raised
        du[...] = -u

    prob = hx.ODEProblem(hx.HostVJP(rhs, identity), U0, (0.0, 1.0), P)
    with pytest.raises(ValveStuck) as info:
        hx.solve(prob)
    assert info.value is raised
    with pytest.raises(jax.errors.JaxRuntimeError, match="ValveStuck: valve 3"):
        jax.block_until_ready(jax.jit(lambda: hx.solve(prob).us)())


def test_a_nan_of_the_simulator_is_a_failed_solve_and_not_an_unwritten_entry():
    def rhs(du, u, p, t):
        du[...] = u if t < 0.5 else np.nan

    with pytest.raises(hx.SolveError, match="not finite"):
        hx.solve(hx.ODEProblem(hx.HostVJP(rhs, identity), U0, (0.0, 1.0), P))


# ------------------------------------------------------------------ transforms
@pytest.mark.parametrize("batched", [False, True])
def test_lanes_with_shared_parameters_or_with_own_ones(batched):
    """grad of vmap with shared parameters, in few calls, and with a leaf for each lane."""
    s = Simulator(batched=batched)
    u0 = jnp.stack([U0, 2 * U0, -U0])
    own = jnp.array([0.3, 0.1, 0.2])

    def shared(fn):
        return jax.jit(jax.grad(lambda u0, p: jnp.sum(jax.vmap(lambda u: loss(fn, u, p))(u0)), (0, 1)))

    def apart(fn):
        return jax.jit(
            jax.grad(lambda u0, a, b: jnp.sum(jax.vmap(lambda u, b: loss(fn, u, {"a": a, "b": b}))(u0, b)), (0, 1, 2))
        )

    if batched:
        got, calls = s.counted(shared(s.host), u0, P)
        assert relative_error(got, shared(f)(u0, P)) < 1e-12
        assert calls["vjp_p"] < 10
    else:
        got = apart(s.host)(u0, P["a"], own)
        assert relative_error(got, apart(f)(u0, P["a"], own)) < 1e-12


def test_vmapped_cotangents_and_parameters_reach_a_batched_host_point_by_point():
    s = Simulator(batched=True)
    u, p = jnp.arange(6.0).reshape(3, 2), {"a": jnp.ones((3, 2)) * jnp.arange(1.0, 4.0)[:, None], "b": P["b"]}
    lam = jnp.sin(jnp.arange(12.0)).reshape(2, 3, 2)

    def pull(fn):
        axes = (0, {"a": 0, "b": None}, 0)
        inner = jax.vmap(lambda u, p, lam: jax.vjp(lambda u, p: fn(u, p, 0.1), u, p)[1](lam), axes)
        return jax.jit(jax.vmap(inner, (None, None, 0)))(u, p, lam)

    assert relative_error(pull(s.host), pull(f)) < 1e-13


def test_simultaneous_solves_do_not_overlap_in_the_simulator(expected):
    inside, overlaps = [0], []

    def rhs(du, u, p, t):
        inside[0] += 1
        overlaps.append(inside[0])
        du[...] = p["a"] * np.sin(u[::-1]) - p["b"] * u * u
        inside[0] -= 1

    clean = Simulator(rhs=rhs)
    gradient = jax.jit(jax.grad(lambda *x: loss(clean.host, *x), (0, 1)))
    results = []
    threads = [threading.Thread(target=lambda: results.append(jax.block_until_ready(gradient(U0, P)))) for _ in range(4)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert len(results) == 4 and set(overlaps) == {1}
    for got in results:
        assert relative_error(got, expected) < 1e-12


def test_a_training_loop_compiles_once_and_another_host_is_another_program():
    s, other = Simulator(), Simulator(rhs=scale)

    def run(host, p):
        # a right-hand side and a problem made anew in every iteration
        return jax.value_and_grad(lambda p: loss(lambda u, p, t: host(u, p, t), U0, p))(p)

    first = run(s.host, P)
    run(s.host, P)
    moved = jax.tree.map(lambda x: 1.1 * x, P)
    with compilations() as compiled:
        again = run(s.host, moved)
    assert compiled.count == 0
    assert float(again[0]) != float(first[0])
    growth = np.exp(OPTIONS["saveat"])[:, None] * np.asarray(U0)
    assert float(run(other.host, P)[0]) == pytest.approx(np.sum(np.array([[1.0, 2.0], [3.0, 4.0]]) * growth), rel=1e-6)


def test_other_derivatives_than_first_ones_in_reverse_are_refused():
    host = Simulator().host
    with pytest.raises(TypeError, match="no forward-mode derivative"):
        jax.jvp(lambda u: host(u, P, 0.0), (U0,), (U0,))
    with pytest.raises(TypeError, match="no forward-mode derivative"):
        jax.jvp(jax.grad(lambda u0: loss(host, u0, P)), (U0,), (U0,))
    for second in (jax.jacrev, lambda g: jax.jit(jax.jacfwd(g))):
        with pytest.raises(TypeError, match="first derivatives only"):
            second(jax.grad(lambda u: jnp.sum(host(u, P, 0.0))))(U0)


# ------------------------------------------------------------------ inside other functions, other structures
class Hybrid(eqx.Module):
    network: hx.MLP
    physics: dict
    order: int = 3


def test_a_host_inside_a_right_hand_side_and_as_an_affect_trains_with_the_network_beside_it():
    s = Simulator()
    kick = hx.HostVJP(lambda v, u, p, t: v.__setitem__(..., 0.5 * u), lambda lam, u, p, t: (0.5 * lam, p_zero(p)))
    p = Hybrid(hx.MLP((2, 3, 2), key=jax.random.key(1)), P)

    def p_zero(p):
        assert type(p) is Hybrid and p.order == 3
        return jax.tree.map(np.zeros_like, p)

    def fixed(physics, affect):
        def total(p):
            callback = hx.PresetTimeCallback([0.5], affect, save_positions=(False, False))
            return loss(lambda u, p, t: physics(u, p.physics, t) + p.network(u), U0, p, callback=callback)

        return eqx.filter_jit(eqx.filter_grad(total))(p)

    assert relative_error(fixed(s.host, kick), fixed(f, lambda u, p, t: 0.5 * u)) < 1e-12


# ------------------------------------------------------------------ differences on the host
def test_without_a_product_differences_stand_in_and_a_warning_says_so(expected):
    s = Simulator()
    with pytest.warns(UserWarning, match="vjp_u and vjp_p not given; central differences"):
        host = hx.HostVJP(s.rhs)
    got = jax.jit(jax.grad(lambda *x: loss(host, *x), (0, 1)))(U0, P)
    assert relative_error(got, expected) < 1e-8


def diffusion(du, u, p, t):
    du[...] = -2 * u
    du[..., 1:] += u[..., :-1]
    du[..., :-1] += u[..., 1:] * p + u[..., :-1] ** 3


@pytest.mark.parametrize("batched", [False, True])
def test_a_sparsity_pattern_costs_two_calls_for_each_colour(batched):
    n, calls = 9, []

    def rhs(du, u, p, t):
        calls.append(1)
        diffusion(du, u, p, t)

    pattern = np.eye(n) + np.eye(n, k=1) + np.eye(n, k=-1)
    with pytest.warns(UserWarning, match="vjp_u not given; .* for each colour"):
        host = hx.HostVJP(rhs, vjp_p=lambda *_: 0.0, sparsity=pattern, batched=batched)
    u, lam = jnp.linspace(-1.0, 2.0, n), jnp.cos(jnp.arange(n, dtype=float))
    _, back = jax.vjp(lambda u: host(u, 0.7, 0.0), u)
    calls.clear()
    got = back(lam)[0]
    assert len(calls) == 6  # three colours
    jacobian = -2 * np.eye(n) + np.eye(n, k=-1) + 0.7 * np.eye(n, k=1)
    jacobian[:-1, :-1] += np.diag(3 * np.asarray(u)[:-1] ** 2)
    np.testing.assert_allclose(got, lam @ jacobian, rtol=1e-9, atol=1e-9)


def test_differences_in_jax_and_on_the_host_follow_jax_for_complex_mixed_and_integer_leaves():
    def g(xp):
        def rhs(u, p, t):
            z, x = u["z"], u["x"]
            return {"z": p["w"] * z * z + xp.conj(z) * t * p["k"], "x": (xp.abs(z) ** 2).sum() * x * p["k"] + p["s"].real}

        return rhs

    u = {"z": jnp.array([1.0 + 2.0j, -0.5 + 0.3j]), "x": jnp.array([0.4, 1.1])}
    p = {"w": jnp.array(0.7 - 0.2j), "k": jnp.array(3.0), "s": jnp.array([1.0j, 2.0 + 1.0j]), "n": jnp.arange(3), "m": 4}
    lam = {"z": jnp.array([0.3 + 1.0j, -2.0j]), "x": jnp.array([1.5, -0.5])}
    with pytest.warns(UserWarning, match="central differences"):
        host = hx.HostVJP(g(np), in_place=False)
    moving = {k: p[k] for k in "wks"}

    def pull(fn):
        with jax.numpy_dtype_promotion("standard"):
            _, back = jax.vjp(lambda u, q, t: fn(u, {**p, **q}, t), u, moving, jnp.array(0.6))
            return jax.jit(back)(lam)

    reference = pull(g(jnp))
    for fn in (host, hx.FiniteDifferenceVJP().dress(g(jnp))):
        assert relative_error(pull(fn), reference) < 1e-9


def test_methods_that_differentiate_the_loop_take_a_host_in_reverse_and_refuse_it_forward(expected):
    host = Simulator().host
    got = jax.jit(jax.grad(lambda *x: loss(host, *x, hx.DirectAdjoint(), max_steps=32), (0, 1)))(U0, P)
    assert relative_error(got, expected) < 1e-12
    with pytest.raises(TypeError, match="no forward-mode derivative"):
        jax.jvp(lambda u0: loss(host, u0, P, hx.ForwardSensitivity()), (U0,), (U0,))


def test_the_example_of_the_manual_runs(capsys):
    manual = pathlib.Path(__file__).parents[2] / "docs" / "backends.md"
    exec(manual.read_text().split("```python\n")[1].split("```")[0], {})
    assert "stiffness" in capsys.readouterr().out
