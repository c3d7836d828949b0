"""What XLA cannot compile into one function stays out of it: each of these once failed to compile, or gave other numbers."""

import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridax.solvers import one_kernel
from jax import export
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import hybridax as hx

TOLERANCES = dict(rtol=1e-8, atol=1e-8)


def end(rhs, u0, p):
    return hx.solve(hx.ODEProblem(rhs, u0, (0.0, 1.0), p), **TOLERANCES).us[-1]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("terms", [3, 2000])
def test_sums_of_short_numbers(dtype, terms):
    """Added up in float32: in eight digits a sum of ones ends at 256."""
    ones = jnp.ones((1, terms), dtype)

    def rhs(u, p, t):
        return -u * p + (ones @ jnp.full((terms, 1), 1.01, dtype)).astype(u.dtype)[0, 0] / terms

    steady = float(jnp.asarray(1.01, dtype) * terms)
    steady = float(jnp.asarray(steady, dtype)) / terms
    value, slope = jax.value_and_grad(lambda p: end(rhs, jnp.ones(2), p)[0])(2.0)
    decay = np.exp(-2.0)
    np.testing.assert_allclose(value, steady / 2 + (1 - steady / 2) * decay, rtol=1e-7)
    np.testing.assert_allclose(slope, -steady / 4 * (1 - decay) - (1 - steady / 2) * decay, rtol=1e-6)


def test_a_table_of_random_keys():
    keys = jax.random.split(jax.random.key(0), 5)

    def rhs(u, p, t):
        return -p * u + jax.random.normal(keys[(p * 2).astype(int)], (3,)) * p

    noise = jax.random.normal(keys[2], (3,))
    gradient = jax.grad(lambda p: jnp.sum(end(rhs, jnp.ones(3), p)))(1.0)
    np.testing.assert_allclose(gradient, jnp.sum((noise - 1) * np.exp(-1.0)), rtol=1e-6)


def test_axes_that_are_parts_of_types():
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,))
    u0 = jax.device_put(jnp.linspace(0.0, 1.0, 4), NamedSharding(mesh, PartitionSpec()))
    value = lambda p, u0: jnp.sum(end(lambda u, p, t: -p * u + 0.1 * jnp.flip(u), u0, p))
    with jax.set_mesh(mesh):
        one = jax.jit(jax.grad(value))(1.0, u0)
        many = jax.jit(jax.grad(lambda p: jnp.sum(jax.vmap(value, (0, None))(p, u0))))(jnp.ones(40))
    np.testing.assert_allclose(one, -2 * np.exp(-0.9), rtol=1e-7)
    np.testing.assert_allclose(many, np.full(40, one), rtol=1e-7)


def test_a_length_that_is_not_known():
    (n,) = export.symbolic_shape("n")

    def rhs(u, p, t):
        return -jnp.sort(u) * p

    rows = jax.jit(lambda s: hx.solve(hx.ODEProblem(rhs, jnp.ones(3), (0.0, 1.0), 2.0), saveat=s, **TOLERANCES).us)
    exported = export.export(rows)(jax.ShapeDtypeStruct((n,), float))
    times = jnp.linspace(0.1, 0.9, 5)
    np.testing.assert_allclose(exported.call(times), np.exp(-2 * times)[:, None] * np.ones(3), rtol=1e-7)


def test_no_lanes():
    def loss(p, u0):
        return jnp.sum(jax.vmap(lambda u: end(lambda u, p, t: -u * p[0] + p[1], u, p))(u0) ** 2) + jnp.sum(p)

    np.testing.assert_array_equal(jax.jit(jax.grad(loss))(jnp.array([0.7, 1.3]), jnp.ones((0, 3))), [1.0, 1.0])


def test_parameters_without_entries():
    rhs = lambda u, p, t: -p[0] * u + jnp.sum(p[1]) + jnp.ones((1, 0)) @ jnp.ones(0)
    gradient = jax.grad(lambda a: jnp.sum(end(rhs, jnp.ones(2), (a, jnp.zeros((0, 3))))))(1.0)
    np.testing.assert_allclose(gradient, -2 * np.exp(-1.0), rtol=1e-7)


def test_large_arrays_in_a_loop_stay_out_of_kernels():
    """A kernel in a loop would copy what it changes in place: here the record, once for each step."""
    rhs = lambda u, p, t: -p * jnp.sort(u)  # sorting is not for kernels, so that the loop is cut
    gradient = jax.jit(jax.grad(lambda p: end(rhs, jnp.ones(3), p)[0])).lower(1.0).compile()
    calls = [line for line in gradient.as_text().splitlines() if " call(" in line and 'inlineable="false"' in line]
    assert calls or not one_kernel.active()
    assert not any("[4128," in line for line in calls)  # rows of a record
    np.testing.assert_allclose(gradient(1.0), -np.exp(-1.0), rtol=1e-7)


def test_a_state_on_two_devices():
    script = """
        import jax, jax.numpy as jnp, hybridax as hx
        from jax.sharding import AxisType, NamedSharding, PartitionSpec
        jax.config.update("jax_enable_x64", True)
        mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
        u0 = jax.device_put(jnp.ones(4), NamedSharding(mesh, PartitionSpec("x")))
        rhs = lambda u, p, t: -p * u + jnp.roll(u, 1) * 0.1
        end = lambda p, u0: jnp.sum(hx.solve(hx.ODEProblem(rhs, u0, (0.0, 1.0), p), rtol=1e-8, atol=1e-8).us[-1])
        print(jax.jit(jax.grad(end))(1.0, u0))
    """
    flags = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=flags, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    np.testing.assert_allclose(float(run.stdout), -4 * np.exp(-0.9), rtol=1e-7)


def test_a_loop_with_a_condition_on_each_lane():
    matrix, starts = jnp.array([[0.1, 0.3], [0.2, -0.1]]), jnp.array([[0.3, 0.2], [5.0, 0.1], [0.9, 40.0]])

    def halved(x):
        return jax.lax.while_loop(lambda x: jnp.sum(jnp.abs(x)) > 1, lambda x: matrix @ x, x)

    closed = jax.make_jaxpr(jax.vmap(halved))(starts)
    (found,) = jax.jit(lambda x: one_kernel.evaluate(closed, [x]))(starts)
    np.testing.assert_array_equal(found, jnp.stack([halved(x) for x in starts]))
