"""Between the user's pytrees and flat arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


@dataclass(frozen=True)
class Packing:
    """How a pytree of inexact arrays lies in one flat array, and back. Hashable."""

    treedef: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype, ...]
    dtype: np.dtype

    @property
    def size(self) -> int:
        return sum(int(np.prod(s)) for s in self.shapes)

    def pack(self, tree: Any) -> Array:
        """``(size,)``, of the common dtype."""
        return self.pack_leaves(jax.tree.leaves(tree))

    def pack_leaves(self, leaves: Sequence[Any]) -> Array:
        if not leaves:
            return jnp.zeros(0, self.dtype)
        flat = [jnp.ravel(x).astype(self.dtype) for x in leaves]
        return flat[0] if len(flat) == 1 else jnp.concatenate(flat)

    def unpack(self, flat: Array) -> Any:
        """The tree again; leading axes of ``flat (..., size)`` stay in front of every leaf."""
        return self.treedef.unflatten(self.unpack_leaves(flat))

    def unpack_leaves(self, flat: Array) -> list[Array]:
        leaves, at = [], 0
        lead = flat.shape[:-1]
        for shape, dtype in zip(self.shapes, self.dtypes, strict=True):
            size = int(np.prod(shape))
            leaf = flat[..., at : at + size].reshape(lead + shape)
            if dtype.kind != "c" and self.dtype.kind == "c":
                leaf = leaf.real
            leaves.append(leaf.astype(dtype))
            at += size
        return leaves


def packing_of(tree: Any) -> Packing:
    """The packing of a tree whose leaves are inexact arrays."""
    leaves, treedef = jax.tree.flatten(tree)
    dtypes = tuple(np.dtype(jnp.result_type(x)) for x in leaves)
    common = np.dtype(np.result_type(*dtypes)) if dtypes else np.dtype(jnp.result_type(float))
    return Packing(treedef, tuple(np.shape(x) for x in leaves), dtypes, common)
