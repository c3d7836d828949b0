"""Memory stays flat over thousands of gradients, and the same gradient stays the same to the last bit.

Trains the hybrid neural ODE of examples/hybrid_node.py for 200 Adam steps, again and again, until ``--gradients`` were
taken with each method in turn. Run: make memory.
"""

import argparse
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import hybridax as hx

METHODS = [hx.DiscreteAdjoint(), hx.BacksolveAdjoint(), hx.InterpolatingAdjoint(), hx.QuadratureAdjoint()]
LIMIT = 20e6  # bytes


def resident() -> int:
    """Resident memory of this process, in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def sample(u, p, t):
    return jnp.concatenate([u[:2], -3 * u[:2]])


def truth(u, p, t):
    zero = jnp.zeros_like(u[0])
    return jnp.stack([u[0] + u[1] + u[2], u[0] + u[1] + u[3], zero, zero])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gradients", type=int, default=12_000)
    total = parser.parse_args().gradients
    # the first round through the methods compiles: memory is compared from its end on
    start = max(total // 12, 200 * len(METHODS))
    if total <= start:
        parser.error(f"--gradients must be above {start}, so that there is something to compare")
    u0 = jnp.array([2.0, 0.0, 0.0, 0.0])
    callback = hx.PeriodicCallback(sample, 0.1, initial_affect=True)
    data = hx.solve(hx.ODEProblem(truth, u0, (0.0, 1.0), callback=callback), rtol=1e-6, atol=1e-6).us
    model = hx.HybridRHS(hx.MLP((4, 50, 2), key=jax.random.key(0)), acts_on=2)
    prob = hx.ODEProblem(hx.HybridRHS.rhs, u0, (0.0, 1.0), model, callback=callback, rtol=1e-6, atol=1e-6)
    optimizer = optax.adam(0.0025)

    def stepper(method):
        def loss(p):
            # the solve itself is not inside a jit here: its own cache and its capture of closures are what is tested
            return jnp.sum((hx.solve(prob, p=p, sensealg=method).us[:, :2] - data[:, :2]) ** 2)

        eager = jax.value_and_grad(loss)
        compiled = jax.jit(eager)
        return eager, compiled

    steppers = [stepper(m) for m in METHODS]
    update = jax.jit(optimizer.update)
    first = [jax.tree.leaves(compiled(model)[1]) for _, compiled in steppers]
    done, turn, base = 0, 0, 0
    while done < total:
        eager, compiled = steppers[turn % len(steppers)]
        params, state = model, optimizer.init(model)
        for k in range(min(200, total - done)):
            # one gradient in fifty is taken outside jit
            _, grads = eager(params) if k % 50 == 0 else compiled(params)
            updates, state = update(grads, state)
            params = optax.apply_updates(params, updates)
            done += 1
            if done == start:
                base = resident()
        turn += 1
    grown = resident() - base
    last = [jax.tree.leaves(compiled(model)[1]) for _, compiled in steppers]
    same = all(np.array_equal(a, b) for one, two in zip(first, last, strict=True) for a, b in zip(one, two, strict=True))
    print(f"{done} gradients: resident memory grew by {grown / 1e6:.1f} MB after the first {start}; bit-identical: {same}")
    return 0 if same and grown < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
