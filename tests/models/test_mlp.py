"""The perceptron against NumPy, its initialisation, and the hybrid right-hand side that holds it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hybridax as hx

SIZES = (3, 5, 4, 2)
NUMPY = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "swish": lambda x: x / (1 + np.exp(-x)),
    "identity": lambda x: x,
}


def mlp(activation="tanh", sizes=SIZES, seed=0, **options):
    return hx.MLP(sizes, key=jax.random.key(seed), activation=activation, **options)


@pytest.mark.parametrize("activation", NUMPY)
def test_layers_are_affine_maps_with_activations_between(activation):
    net, x = mlp(activation), np.array([0.3, -1.2, 2.0])
    biased = eqx.tree_at(lambda m: m.biases, net, tuple(b + 0.1 * (i + 1) for i, b in enumerate(net.biases)))
    want = x
    for i, (w, b) in enumerate(zip(biased.weights, biased.biases, strict=True)):
        want = np.asarray(w) @ want + np.asarray(b)
        want = NUMPY[activation](want) if i < 2 else want
    np.testing.assert_allclose(biased(jnp.asarray(x)), want, rtol=1e-13)


def test_initial_weights_fill_the_glorot_interval_and_biases_are_zero():
    net = mlp(sizes=(200, 100, 2))
    bound = np.sqrt(6 / 300)
    assert 0.99 * bound < np.max(np.abs(net.weights[0])) <= bound
    np.testing.assert_allclose(np.std(net.weights[0]), bound / np.sqrt(3), rtol=0.02)
    assert [w.shape for w in net.weights] == [(100, 200), (2, 100)]
    assert not any(np.any(b) for b in net.biases)


def test_initialisation_is_a_function_of_the_key():
    same, other = mlp(), mlp(seed=1)
    assert eqx.tree_equal(mlp(), same)
    assert not np.any(np.asarray(same.weights[0]) == np.asarray(other.weights[0]))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64, jnp.bfloat16])
def test_dtype_of_parameters_and_output(dtype):
    net = mlp(dtype=dtype)
    assert {x.dtype for x in jax.tree.leaves(net)} == {jnp.dtype(dtype)}
    assert net(jnp.ones(3, dtype)).dtype == dtype


def test_from_arrays_keeps_the_arrays_as_they_are():
    net = mlp("softplus", dtype=jnp.float32)
    again = hx.MLP.from_arrays(net.weights, net.biases, "softplus")
    assert eqx.tree_equal(net, again)


def test_vmap_maps_a_batch():
    net, x = mlp(), jnp.arange(12.0).reshape(4, 3)
    np.testing.assert_allclose(jax.vmap(net)(x), np.stack([net(row) for row in x]), rtol=1e-13)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: mlp(sizes=(3,)), "input and output"),
        (lambda: mlp(sizes=(3, 0, 2)), "each >= 1"),
        (lambda: mlp("sine"), "'sine'.*tanh, relu"),
        (lambda: mlp()(jnp.ones(4)), r"\(3,\) expected, got \(4,\)"),
        (lambda: mlp()(jnp.ones((4, 3))), "jax.vmap"),
        (lambda: hx.MLP.from_arrays([jnp.ones(3)], [jnp.ones(3)]), "matrix"),
        (lambda: hx.MLP.from_arrays([jnp.ones((2, 3))], []), "1 weights, 0 biases"),
        (lambda: hx.MLP.from_arrays([jnp.ones((4, 3)), jnp.ones((2, 5))], [jnp.ones(4), jnp.ones(2)]), "layer 1"),
    ],
)
def test_wrong_input_is_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()


# ---- hybrid right-hand sides


def decay(u, q, t):
    return -q["rate"] * u


def test_hybrid_is_known_part_plus_network():
    u, t = jnp.array([0.5, -1.0]), jnp.asarray(0.0)
    net = mlp(sizes=(2, 6, 2))
    p = hx.HybridRHS(net, {"rate": jnp.asarray(0.7)}, decay)
    np.testing.assert_allclose(hx.HybridRHS.rhs(u, p, t), -0.7 * u + net(u), rtol=1e-14)
    np.testing.assert_array_equal(hx.HybridRHS.rhs(u, hx.HybridRHS(net), t), net(u))


def test_acts_on_leaves_the_other_components_to_the_known_part():
    u, t = jnp.array([0.5, -1.0, 2.0]), jnp.asarray(0.0)
    net = mlp(sizes=(3, 6, 1))
    np.testing.assert_array_equal(hx.HybridRHS.rhs(u, hx.HybridRHS(net, acts_on=1), t), [*net(u), 0.0, 0.0])
    p = hx.HybridRHS(net, {"rate": jnp.asarray(2.0)}, decay, acts_on=1)
    np.testing.assert_array_equal(hx.HybridRHS.rhs(u, p, t)[1:], [2.0, -4.0])


def test_gradient_reaches_known_parameters_through_solve():
    """With a zero network, u' = -a u: d u(1)^2 / da = -2 u0^2 exp(-2 a)."""
    zero = jax.tree.map(jnp.zeros_like, mlp(sizes=(1, 3, 1)))
    p = hx.HybridRHS(zero, {"rate": jnp.asarray(0.7)}, decay)
    prob = hx.ODEProblem(hx.HybridRHS.rhs, jnp.array([2.0]), (0.0, 1.0), p, rtol=1e-10, atol=1e-10)
    grads = jax.grad(lambda q: jnp.sum(hx.solve(prob, p=q).us[-1] ** 2))(p)
    np.testing.assert_allclose(grads.known_params["rate"], -8 * np.exp(-1.4), rtol=1e-7)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: hx.HybridRHS(mlp(sizes=(3, 2)), acts_on=1), "acts_on=1 expects"),
        (lambda: hx.HybridRHS(mlp(sizes=(3, 2))), r"\(2,\) for a state of shape \(3,\)"),
        (lambda: hx.HybridRHS(mlp(sizes=(3, 4)), acts_on=4), "acts_on=4"),
        (lambda: hx.HybridRHS(mlp(sizes=(3, 3)), known=mlp()), "known_params"),
    ],
)
@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
def test_hybrid_names_what_does_not_fit(make, words):
    with pytest.raises(ValueError, match=words):
        hx.HybridRHS.rhs(jnp.ones(3), make(), jnp.asarray(0.0))
