"""Small networks as plain pytrees, with the deterministic weights of the reference problems."""

import jax.numpy as jnp
import numpy as np


def wave_mlp(sizes):
    """W_l[i, j] = sin(1 + 37 l + 11 i + 7 j) / sqrt(fan_in), b_l[i] = cos(l + i) / 10; a list of (W, b)."""
    layers = []
    for k, (n_in, n_out) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
        i, j = np.meshgrid(np.arange(n_out), np.arange(n_in), indexing="ij")
        weight = np.sin(1.0 + 37 * k + 11 * i + 7 * j) / np.sqrt(n_in)
        layers.append((jnp.asarray(weight), jnp.asarray(np.cos(k + np.arange(n_out)) / 10)))
    return layers


def zero_mlp(sizes):
    return [(jnp.zeros((m, n)), jnp.zeros(m)) for n, m in zip(sizes[:-1], sizes[1:], strict=True)]


def mlp(layers, x, activation=jnp.tanh):
    """Affine layers with an activation between them, none after the last."""
    for weight, bias in layers[:-1]:
        x = activation(weight @ x + bias)
    weight, bias = layers[-1]
    return weight @ x + bias
