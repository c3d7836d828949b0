"""The user's parameters, split into arrays that move and everything else.

PRNG keys travel as the integers that they are made of, and are keys again when a function gets them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from .capture import KeyData, is_key
from .closures import is_reference


@dataclass(frozen=True, eq=False)
class Params:
    """A pytree with its arrays taken out: ``rebuild(dynamic)`` is the user's own structure again."""

    treedef: Any
    static: tuple[Any, ...]  # one entry for each leaf, MOVES where it is dynamic
    dynamic: tuple[Any, ...]
    keys: tuple[KeyData | None, ...]  # one entry for each dynamic leaf, how to make a key of it if it is one

    def rebuild(self, dynamic: Sequence[Any]) -> Any:
        it = iter([x if k is None else k.wrap(x) for x, k in zip(dynamic, self.keys, strict=True)])
        return self.treedef.unflatten([next(it) if s is MOVES else s for s in self.static])

    def dynamic_of(self, leaves: Sequence[Any]) -> list[Any]:
        """Those of one value for each leaf that stand at dynamic leaves."""
        return [x for x, s in zip(leaves, self.static, strict=True) if s is MOVES]


class _Moves:
    def __repr__(self) -> str:
        return "MOVES"


MOVES = _Moves()


def split_params(p: Any) -> Params:
    """Arrays and Python floats of ``p`` are data; ints, bools and objects are carried untouched."""
    leaves, treedef = jax.tree.flatten(p)
    if any(is_reference(x) for x in leaves):
        raise TypeError("p holds a mutable array (jax.new_ref), which has no gradient. Pass its value, ref[...].")
    moving = [isinstance(x, (jax.Array, np.ndarray, np.generic, float, complex)) for x in leaves]
    static = tuple(MOVES if m else x for x, m in zip(leaves, moving, strict=True))
    arrays = [x for x, m in zip(leaves, moving, strict=True) if m]
    keys = tuple(KeyData(jax.random.key_impl(x)) if is_key(x) else None for x in arrays)
    dynamic = tuple(jax.random.key_data(x) if k else jnp.asarray(x) for x, k in zip(arrays, keys, strict=True))
    return Params(treedef, static, dynamic, keys)


def is_inexact(x: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jnp.inexact)
