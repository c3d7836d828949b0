"""Whether a fused hand-written VJP of a perceptron beats JAX's own. Run: python benchmarks/fused_vjps.py [--repeats 40].

One gradient of the spiral problem (du/dt = MLP(u^3), 101 saved rows over (0, 1.5), rtol = atol = 1e-6), float32,
interleaved; median and fastest time of each backend. The fused product keeps the activations of one forward pass, forms
the state part and the parameter part from the same deltas, and leaves one outer product for each layer, which XLA may
sum over points as one matrix product.
"""

from __future__ import annotations

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

import hybridax as hx


def rhs(u, p, t):
    return p(u**3)


def fused(lam, u, p, t):
    inputs = [u**3]
    for w, b in zip(p.weights[:-1], p.biases[:-1], strict=True):
        inputs.append(jnp.tanh(w @ inputs[-1] + b))
    delta, weights, biases = lam, [], []
    for layer in reversed(range(len(p.weights))):
        weights.insert(0, delta[:, None] * inputs[layer][None, :])
        biases.insert(0, delta)
        delta = delta @ p.weights[layer]
        if layer:
            delta = delta * (1 - inputs[layer] ** 2)
    return delta * 3 * u**2, jax.tree.unflatten(jax.tree.structure(p), weights + biases)


BACKENDS = {
    "JaxVJP": hx.JaxVJP(),
    "fused, both parts": hx.HandWrittenVJP(vjp=fused),
    "fused, apart": hx.HandWrittenVJP(vjp_u=lambda *x: fused(*x)[0], vjp_p=lambda *x: fused(*x)[1]),
}
METHODS = {"DiscreteAdjoint": hx.DiscreteAdjoint(), "QuadratureAdjoint": hx.QuadratureAdjoint()}


def gradient(backend, method, params):
    def loss(p):
        prob = hx.ODEProblem(rhs, jnp.array([2.0, 0.0]), (0.0, 1.5), p, vjp=backend)
        saves = np.linspace(0.0, 1.5, 101)
        return jnp.sum(hx.solve(prob, saveat=saves, rtol=1e-6, atol=1e-6, sensealg=method).us ** 2)

    return jax.jit(jax.grad(loss)).lower(params).compile()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=40)
    repeats = parser.parse_args().repeats
    for sizes in ((2, 50, 2), (2, 256, 256, 2)):
        params = hx.MLP(sizes, key=jax.random.key(0))
        for name, method in METHODS.items():
            programs = {label: gradient(backend, method, params) for label, backend in BACKENDS.items()}
            times = {label: [] for label in programs}
            for _ in range(repeats):
                for label, program in programs.items():
                    start = time.perf_counter()
                    jax.block_until_ready(program(params))
                    times[label].append(time.perf_counter() - start)
            for label, seconds in times.items():
                median, least = 1e3 * np.median(seconds), 1e3 * np.min(seconds)
                size = "-".join(map(str, sizes))
                print(f"{size:12s} {name:18s} {label:18s} median {median:8.3f} ms  fastest {least:8.3f} ms")


if __name__ == "__main__":
    main()
