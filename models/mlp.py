"""The multilayer perceptron, as a right-hand side or a part of one.

    x_0 = u,   x_{l+1} = activation(W_l x_l + b_l),   last layer without activation.
"""

from __future__ import annotations

from typing import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Inexact

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "softplus": jax.nn.softplus,
    "gelu": jax.nn.gelu,
    "swish": jax.nn.swish,
    "identity": lambda x: x,
}


class MLP(eqx.Module):
    """A perceptron with layer sizes ``sizes = (n_in, ..., n_out)``; ``mlp(x)`` maps ``(n_in,)`` to ``(n_out,)``.

    One state at a time: ``jax.vmap(mlp)`` maps a batch.

    weights: ``W_l (n_{l+1}, n_l)``, drawn from the Glorot uniform distribution on ``+-sqrt(6 / (n_l + n_{l+1}))``;
    biases: ``b_l (n_{l+1},)``, zero. activation: one of tanh, relu, softplus, gelu, swish, identity.

    Source of the initialisation: Glorot & Bengio, AISTATS 2010.
    """

    weights: tuple[Inexact[Array, "out in"], ...]
    biases: tuple[Inexact[Array, " out"], ...]
    activation: str = eqx.field(static=True)

    def __init__(self, sizes: Sequence[int], *, key: Array, activation: str = "tanh", dtype=None):
        sizes = tuple(int(s) for s in sizes)
        if len(sizes) < 2 or min(sizes) < 1:
            raise ValueError(f"MLP: sizes must name at least input and output, each >= 1; got {sizes}.")
        if activation not in ACTIVATIONS:
            raise ValueError(f"MLP: unknown activation {activation!r}; choose one of {', '.join(ACTIVATIONS)}.")
        dtype = jnp.result_type(float) if dtype is None else dtype
        keys = jax.random.split(key, len(sizes) - 1)
        pairs = list(zip(sizes[:-1], sizes[1:], strict=True))
        self.weights = tuple(_glorot(k, n_in, n_out, dtype) for k, (n_in, n_out) in zip(keys, pairs, strict=True))
        self.biases = tuple(jnp.zeros(n_out, dtype) for _, n_out in pairs)
        self.activation = activation

    @classmethod
    def from_arrays(cls, weights: Sequence[Array], biases: Sequence[Array], activation: str = "tanh") -> MLP:
        """The perceptron with the given ``W_l (n_{l+1}, n_l)`` and ``b_l (n_{l+1},)``."""
        weights, biases = tuple(map(jnp.asarray, weights)), tuple(map(jnp.asarray, biases))
        if not weights or len(weights) != len(biases):
            raise ValueError(f"MLP: one bias for each weight; got {len(weights)} weights, {len(biases)} biases.")
        if any(w.ndim != 2 for w in weights):
            raise ValueError(f"MLP: each weight is a matrix (n_out, n_in); got shapes {[w.shape for w in weights]}.")
        sizes = [weights[0].shape[1], *(w.shape[0] for w in weights)]
        for l, (w, b) in enumerate(zip(weights, biases, strict=True)):
            if w.shape != (sizes[l + 1], sizes[l]) or b.shape != (sizes[l + 1],):
                raise ValueError(
                    f"MLP: layer {l} has weight {w.shape} and bias {b.shape}; "
                    f"expected {(sizes[l + 1], sizes[l])} and {(sizes[l + 1],)}."
                )
        blank = cls(sizes, key=jax.random.key(0), activation=activation)
        return eqx.tree_at(lambda m: (m.weights, m.biases), blank, (weights, biases))

    def __call__(self, x: Inexact[Array, " in"]) -> Inexact[Array, " out"]:
        if jnp.shape(x) != self.weights[0].shape[1:]:
            raise ValueError(
                f"MLP: one state of shape {self.weights[0].shape[1:]} expected, got {jnp.shape(x)}; "
                "use jax.vmap(mlp) for a batch."
            )
        act = ACTIVATIONS[self.activation]
        for w, b in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = act(w @ x + b)
        return self.weights[-1] @ x + self.biases[-1]


def _glorot(key: Array, n_in: int, n_out: int, dtype) -> Array:
    bound = (6 / (n_in + n_out)) ** 0.5
    return jax.random.uniform(key, (n_out, n_in), dtype, -bound, bound)
