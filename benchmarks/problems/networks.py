"""A perceptron as plain arrays, which every library takes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def network(sizes, key, scale=0.5):
    """Weights ``(m, n)``, normal with deviation ``scale / sqrt(n)``, and zero biases."""
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        (jax.random.normal(k, (m, n)) / np.sqrt(n) * scale, jnp.zeros(m))
        for k, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def apply(layers, x):
    for w, b in layers[:-1]:
        x = jnp.tanh(w @ x + b)
    w, b = layers[-1]
    return w @ x + b
