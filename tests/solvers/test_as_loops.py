"""Products, reductions, gathers and scatters as loops: the same results as those of the operations they stand for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridax.solvers.as_loops import LOOPS
from jax import lax

RNG = np.random.default_rng(0)
A, B, C = (jnp.asarray(RNG.normal(size=s)) for s in ((4, 5, 3), (5, 3, 6), (4, 40, 3)))
AT = jnp.array([3, 0, 9, -1, -7, 1])
PAIRS = jnp.array([[0, 2], [3, 1], [0, 2], [7, 0]])
LANES = jnp.array([2, 0, 1])

PRODUCTS = {
    "inner": lambda: jnp.dot(A[0, 0], B[0, :, 1]),
    "outer": lambda: jnp.tensordot(A[0, 0], B[0, 0], 0),
    "matrices": lambda: A[0] @ B[0].reshape(3, 6),
    "two contracted": lambda: jnp.tensordot(A, B, 2),
    "batched": lambda: jnp.einsum("ikj,kjl->kil", A, B),
    "long": lambda: jnp.einsum("ikj,lkj->ijl", C, C),
    "complex": lambda: jnp.einsum("ikj,kjl->il", lax.complex(A, A[::-1]), lax.complex(B, B)),
    "single": lambda: jnp.dot(A[0].astype(np.float32), B[0].astype(np.float32)),
    "integers": lambda: jnp.dot(PAIRS, PAIRS.T),
    "nothing contracted": lambda: jnp.dot(A[0, :, :0], B[0, :0]),
}
REDUCED = {
    "sum": lambda: jnp.sum(C, (0, 2)),
    "all": lambda: jnp.sum(C),
    "one": lambda: jnp.max(C[:1], 0),
    "max": lambda: jnp.max(C, 1),
    "min": lambda: jnp.min(C.at[1, 2].set(jnp.nan), 1),
    "prod": lambda: jnp.prod(A, (0, 1)),
    "and": lambda: jnp.all(C > -1, (0, 2)),
    "or": lambda: jnp.any(C > 2, 1),
    "integers": lambda: jnp.sum(PAIRS, 0),
}
GATHERED = {
    mode + name: lambda read=read, mode=mode: read(mode)
    for mode in ("fill", "clip", "promise_in_bounds")
    for name, read in {
        " rows": lambda m: A.at[AT % 4 if m == "promise_in_bounds" else AT].get(mode=m),
        " columns": lambda m: A.at[:, AT % 5].get(mode=m),
        " entries": lambda m: A[:, :, 0].at[PAIRS[:, 0] % 4, PAIRS[:, 1]].get(mode=m),
        " lanes": lambda m: A.at[LANES, jnp.arange(3)].get(mode=m),
        " integers": lambda m: PAIRS.at[AT % 3].get(mode=m),
    }.items()
} | {
    "fill entries beyond": lambda: A[:, :, 0].at[PAIRS[:, 0], PAIRS[:, 1]].get(mode="fill"),
    "fill value": lambda: PAIRS.at[AT].get(mode="fill", fill_value=5),
    "integers beyond": lambda: PAIRS.at[AT].get(mode="fill"),
    "batched": lambda: jax.vmap(lambda x, i: x[i])(A, jnp.stack([AT, AT, AT + 1, AT - 2])),
    "along": lambda: jnp.take_along_axis(A, jnp.argsort(A, 1), 1),
    "shape of indices": lambda: A[AT.reshape(2, 3)],
}
SCATTERED = {
    "set": lambda: A.at[LANES].set(A[:3] + 1),
    "add": lambda: A.at[AT].add(1.0),
    "add twice": lambda: A.at[PAIRS[:, 0] % 4, PAIRS[:, 1]].add(jnp.arange(12.0).reshape(4, 3)),
    "drop": lambda: A.at[AT, jnp.arange(6) % 5].set(A[0, 0], mode="drop"),
    "clip": lambda: A.at[AT].add(1.0, mode="clip"),
    "mul": lambda: A.at[LANES].mul(2.0),
    "max": lambda: A.at[LANES, 0].max(0.5),
    "min": lambda: A.at[LANES, 0].min(0.5),
    "columns": lambda: A.at[:, LANES].set(0.0),
    "batched": lambda: jax.vmap(lambda x, i: x.at[i].add(1.0))(A, jnp.stack([AT, AT, AT + 1, AT - 2])),
    "sub": lambda: A.at[LANES].subtract(A[:3]),
    "integers": lambda: PAIRS.at[AT].add(3),
}


KINDS = {"product": PRODUCTS, "reduction": REDUCED, "gather": GATHERED, "scatter": SCATTERED}


@pytest.mark.parametrize(
    "function",
    [pytest.param(f, id=f"{kind}, {name}") for kind, cases in KINDS.items() for name, f in cases.items()],
)
def test_same_results(function):
    closed, met = jax.make_jaxpr(function)(), 0

    def run(jaxpr, consts, inputs):
        nonlocal met
        values = dict(zip(jaxpr.constvars, consts)) | dict(zip(jaxpr.invars, inputs))
        for eqn in jaxpr.eqns:
            inner = [v.val if hasattr(v, "val") else values[v] for v in eqn.invars]
            if eqn.primitive.name in ("jit", "pjit"):
                out = run(eqn.params["jaxpr"].jaxpr, eqn.params["jaxpr"].consts, inner)
            else:
                out = eqn.primitive.bind(*inner, **eqn.primitive.get_bind_params(eqn.params))
                out = out if eqn.primitive.multiple_results else [out]
                if eqn.primitive.name in LOOPS:
                    met += 1
                    expected, out = out, LOOPS[eqn.primitive.name](eqn, *inner)
                    assert [(x.shape, x.dtype) for x in out] == [(x.shape, x.dtype) for x in expected]
                    for got, right in zip(out, expected, strict=True):
                        np.testing.assert_allclose(got, right, rtol=1e-6 if right.dtype == np.float32 else 1e-13, atol=1e-13)
            values.update(zip(eqn.outvars, out, strict=True))
        return [v.val if hasattr(v, "val") else values[v] for v in jaxpr.outvars]

    run(closed.jaxpr, closed.consts, ())
    assert met
