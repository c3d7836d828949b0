"""explain_gradient: every structurally zero cause is named, and nothing else is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hybridax as hx

U0 = jnp.array([0.4, 1.2])


def problem(f, p, u0=U0, **options):
    return hx.ODEProblem(f, u0, (0.0, 1.0), p, **options)


def causes(report):
    return {zero.leaf: zero.causes for zero in report.zeros}


@jax.custom_vjp
def straight_through(x):
    return jnp.round(x)


straight_through.defvjp(lambda x: (jnp.round(x), None), lambda _, bar: (bar,))

#: one path each from p to du/dt
PATHS = {
    "unused": (lambda u, p, t: u, "unused"),
    "used in a product with nothing": (lambda u, p, t: u + 0 * t, "unused"),
    "stop_gradient": (lambda u, p, t: jax.lax.stop_gradient(p) * u, "stop_gradient"),
    "integer cast": (lambda u, p, t: p.astype(int).astype(u.dtype) * u, "integer cast"),
    "floor": (lambda u, p, t: jnp.floor(p) * u, "rounding (floor)"),
    "round": (lambda u, p, t: jnp.round(p) * u, "rounding (round)"),
    "sign": (lambda u, p, t: jnp.sign(p) * u, "rounding (sign)"),
    "comparison": (lambda u, p, t: jnp.where(p > t, u, -u), "comparison only"),
    "argmax": (lambda u, p, t: u[jnp.argmax(jnp.stack([p, t]))] * u, "index only (argmax)"),
    "branch": (lambda u, p, t: jax.lax.cond(p > 0, lambda: u, lambda: -u), "comparison only"),
    "inside jit": (lambda u, p, t: jax.jit(lambda q: jax.lax.stop_gradient(q) * u)(p), "stop_gradient"),
    "inside scan": (
        lambda u, p, t: jax.lax.scan(lambda c, _: (c + jnp.floor(p), None), jnp.zeros(()), None, 3)[0] * u,
        "rounding (floor)",
    ),
    "count of a loop": (
        lambda u, p, t: jax.lax.while_loop(lambda c: c < p, lambda c: c + 1.0, jnp.zeros(())) * u,
        "comparison only",
    ),
    "carried around": (
        lambda u, p, t: jax.lax.scan(lambda c, _: ((c[1], jnp.sign(c[0])), None), (p, t), None, 2)[0][1] * u,
        "rounding (sign)",
    ),
}


@pytest.mark.parametrize("path", PATHS)
def test_a_leaf_that_no_differentiable_path_reaches_is_named_with_its_cause(path):
    f, cause = PATHS[path]
    only = hx.explain_gradient(problem(lambda u, p, t: f(u, p["x"], t) * p["rate"], {"x": jnp.array(0.3), "rate": 1.0}))
    assert causes(only) == {"p['x']": (cause,)}
    assert only and "p['x']" in str(only) and cause in str(only)


LIVE = {
    "product": lambda u, p, t: p * u,
    "one path of two": lambda u, p, t: jnp.floor(p) * u + jnp.where(p > 0, p, 0.0),
    "straight-through estimator": lambda u, p, t: (p + jax.lax.stop_gradient(jnp.round(p) - p)) * u,
    "custom derivative": lambda u, p, t: straight_through(p) * u,
    "relu": lambda u, p, t: jax.nn.relu(p) * u,
    "where": lambda u, p, t: jnp.where(t > 0.5, p, 2 * p) * u,
    "scan": lambda u, p, t: jax.lax.scan(lambda c, _: (c * p, None), jnp.ones(()), None, 3)[0] * u,
    "second turn of a scan": lambda u, p, t: jax.lax.scan(lambda c, _: ((c[1], c[0]), None), (p, t), None, 3)[0][1] * u,
    "one branch": lambda u, p, t: jax.lax.cond(t > 0.5, lambda q: q * u, lambda q: u, p),
    "loop": lambda u, p, t: jax.lax.fori_loop(0, 3, lambda i, c: c * p, jnp.ones(())) * u,
    "checkpoint": lambda u, p, t: jax.checkpoint(lambda q: jnp.sin(q) * u)(p),
}


@pytest.mark.parametrize("path", LIVE)
def test_a_model_without_a_problem_gives_an_empty_report(path):
    report = hx.explain_gradient(problem(LIVE[path], jnp.array(0.3)))
    assert not report and len(report) == 0 and report.zeros == () and report.captured == () and report.notes == ()


def test_what_is_reported_is_zero_and_what_is_not_is_not():
    """Against numbers, on all paths at once."""
    paths = {**{k: f for k, (f, _) in PATHS.items() if k != "count of a loop"}, **LIVE}
    f = lambda u, p, t: sum(g(u, p[name], t) for name, g in paths.items())
    p = {name: jnp.array(0.3 + 0.01 * i) for i, name in enumerate(paths)}
    reported = {z.leaf for z in hx.explain_gradient(problem(f, p)).zeros}
    gradient = jax.grad(lambda p: jnp.sum(f(U0, p, jnp.array(0.7))))(p)
    assert reported == {f"p[{name!r}]" for name, x in gradient.items() if x == 0}
    assert len(reported) == len(PATHS) - 1


def test_the_line_that_breaks_the_path_is_told():
    report = hx.explain_gradient(problem(PATHS["floor"][0], jnp.array(0.3)))
    assert "test_audit_explain.py:" in report.zeros[0].detail
    assert report.zeros[0].leaf == "p"


def test_every_cause_of_a_leaf_is_listed():
    f = lambda u, p, t: jnp.floor(p) * u + jax.lax.stop_gradient(p)
    assert causes(hx.explain_gradient(problem(f, jnp.array(0.3)))) == {"p": ("rounding (floor)", "stop_gradient")}


# ------------------------------------------------------------------ events and costs
def decay(u, p, t):
    return -p["rate"] * u


P = {"rate": jnp.array(0.5), "other": jnp.array(0.25)}
EVENTS = {
    "affect": ({"callback": hx.PresetTimeCallback([0.5], lambda u, p, t: p["other"] * u)}, None),
    "affect that ignores it": ({"callback": hx.PresetTimeCallback([0.5], lambda u, p, t: 2 * u)}, "unused"),
    "affect that stops it": (
        {"callback": hx.PeriodicCallback(lambda u, p, t: jax.lax.stop_gradient(p["other"]) * u, 0.5)},
        "stop_gradient",
    ),
    "threshold of a root": ({"callback": hx.ContinuousCallback(lambda u, p, t: u[0] - p["other"], lambda u, p, t: -u)}, None),
    "affect_neg": (
        {"callback": hx.ContinuousCallback(lambda u, p, t: u[0], lambda u, p, t: u, lambda u, p, t, i: p["other"] * u)},
        None,
    ),
    "threshold of a boolean": (
        {"callback": hx.DiscreteCallback(lambda u, p, t: u[0] < p["other"], lambda u, p, t: -u)},
        "comparison only",
    ),
    "second of a set": (
        {
            "callback": hx.CallbackSet(
                hx.DiscreteCallback(lambda u, p, t, tprev: t - tprev > 1, lambda u, p, t, tprev: u * (t - tprev)),
                hx.PresetTimeCallback([0.5], lambda u, p, t: p["other"] * u),
            )
        },
        None,
    ),
    "running cost": ({"running_cost": lambda u, p, t: jnp.sum(p["other"] * u)}, None),
    "written to another leaf": (
        {"callback": hx.PresetTimeCallback([0.5], lambda u, p, t: (u, {**p, "rate": p["other"]}), affects_params=True)},
        None,
    ),
    "only kept by an event that writes": (
        {"callback": hx.PresetTimeCallback([0.5], lambda u, p, t: (u, {**p, "rate": 2 * p["rate"]}), affects_params=True)},
        "unused",
    ),
    "rounded, and written to another leaf": (
        {
            "callback": hx.PresetTimeCallback(
                [0.5], lambda u, p, t: (u, {**p, "rate": jnp.floor(p["other"])}), affects_params=True
            )
        },
        "rounding (floor)",
    ),
}


@pytest.mark.parametrize("place", EVENTS)
def test_affects_conditions_and_costs_count(place):
    options, cause = EVENTS[place]
    expected = {} if cause is None else {"p['other']": (cause,)}
    assert causes(hx.explain_gradient(problem(decay, P, **options))) == expected
    # the same where the options are given to the call
    assert causes(hx.explain_gradient(problem(decay, P), **options)) == expected


# ------------------------------------------------------------------ captured arrays
RATES = np.array([0.3, 0.2])


class Model:
    def __init__(self):
        self.rates, self.gain, self.scale = RATES.copy(), jnp.array([1.0, 2.0]), 1.5

    def __call__(self, u, p, t):
        return self.scale * self.gain * self.rates * u * p["rate"]


def test_a_captured_array_in_place_of_the_leaf_is_named():
    report = hx.explain_gradient(problem(lambda u, p, t: -RATES * u, {"rates": jnp.array(RATES), "x": jnp.array([0.3, 0.1])}))
    assert causes(report) == {"p['rates']": ("captured constant",), "p['x']": ("unused",)}
    assert "RATES" in report.zeros[0].detail


def test_a_single_number_is_taken_for_a_leaf_only_under_its_name():
    rate = 0.5
    report = hx.explain_gradient(problem(lambda u, p, t: -rate * u, {"rate": jnp.array(0.5), "other": jnp.array(0.5)}))
    assert causes(report) == {"p['rate']": ("captured constant",), "p['other']": ("unused",)}


def test_captured_arrays_are_listed_by_name_and_are_no_finding():
    report = hx.explain_gradient(problem(Model(), {"rate": jnp.array(1.0)}))
    assert not report
    found = {c.name: c for c in report.captured}
    assert set(found) == {"rates", "gain", "scale"}
    assert found["rates"].shape == (2,) and found["rates"].dtype == "float64" and "0.3" in found["rates"].summary
    assert "NumPy" in found["rates"].kind and "frozen" in found["rates"].kind
    assert "f holds rates" in str(report)


def test_a_captured_tracer_is_told_apart_as_it_gets_a_gradient():
    reports = []

    def loss(x):
        reports.append(hx.explain_gradient(problem(lambda u, p, t: x * u, None)))
        return x

    jax.grad(loss)(0.5)
    assert [c.kind for c in reports[0].captured] == ["traced, so that it gets a gradient"]
    assert reports[0].captured[0].name == "x"


# ------------------------------------------------------------------ what is noted
def test_the_state_is_noted_where_no_right_hand_side_reads_it_and_never_reported():
    u0 = {"x": jnp.ones(2), "clock": jnp.array(0.0), "mode": jnp.array(1.0)}
    f = lambda u, p, t: {"x": p * u["x"] * jnp.sign(u["mode"]), "clock": jnp.ones(()), "mode": jnp.zeros(())}
    report = hx.explain_gradient(problem(f, jnp.array(0.3), u0))
    assert not report
    assert [n.split(" does not")[0] for n in report.notes] == ["u0['clock']", "u0['mode']"]
    assert "rounding (sign)" in report.notes[1]


def test_integers_are_noted():
    p = {"rate": 0.5, "n": 3, "k": np.arange(2), "on": True, "key": jax.random.key(0), "label": "x", "none": None}
    report = hx.explain_gradient(problem(lambda u, p, t: p["rate"] * u, p))
    assert not report
    assert [note.split(" is ")[0] for note in report.notes] == ["p['k']", "p['n']"]


def test_what_is_no_problem_is_refused():
    with pytest.raises(TypeError, match="ODEProblem"):
        hx.explain_gradient(decay)


def test_values_and_the_order_of_events_are_not_looked_at():
    """The documented limits: a leaf multiplied by zero, and one that is overwritten at t0, count as live."""
    start = hx.PresetTimeCallback([0.0], lambda u, p, t: (u, {**p, "b": p["c"]}), affects_params=True)
    p = {name: jnp.array(0.5) for name in "abc"}
    prob = hx.ODEProblem(lambda u, p, t: -p["b"] * u + 0.0 * p["a"], jnp.ones(1), (0.0, 1.0), p, callback=start)
    assert not hx.explain_gradient(prob)
    gradient = jax.grad(lambda p: jnp.sum(hx.solve(prob, p=p).us))(p)
    assert gradient["a"] == 0 and gradient["b"] == 0 and gradient["c"] != 0
