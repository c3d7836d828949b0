"""The user's parameters, split into arrays that move and everything else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True, eq=False)
class Params:
    """A pytree with its arrays taken out: ``rebuild(dynamic)`` is the user's own structure again."""

    treedef: Any
    static: tuple[Any, ...]  # one entry for each leaf, MOVES where it is dynamic
    dynamic: tuple[Any, ...]

    def rebuild(self, dynamic: Sequence[Any]) -> Any:
        it = iter(dynamic)
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
    moving = [isinstance(x, (jax.Array, np.ndarray, np.generic, float, complex)) for x in leaves]
    static = tuple(MOVES if m else x for x, m in zip(leaves, moving, strict=True))
    dynamic = tuple(jnp.asarray(x) for x, m in zip(leaves, moving, strict=True) if m)
    return Params(treedef, static, dynamic)


def is_inexact(x: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jnp.inexact)
