"""Checkpoints of a training run: written atomically, without pickle.

A checkpoint is one ``.npz`` file: the leaves of a pytree in order, the step, the loss history, and a description of
the tree's structure. It is written beside its place and moved there, so that a kill leaves the old or the new one.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


class CheckpointError(ValueError):
    """A checkpoint does not belong to the run that wants to resume from it."""


def _describe(tree: Any) -> str:
    leaves = [f"{jax.tree_util.keystr(k)}:{x.shape}:{x.dtype}" for k, x in jax.tree_util.tree_leaves_with_path(tree)]
    return "\n".join(leaves)


def save_checkpoint(path: str | os.PathLike, tree: Any, step: int, history: Any) -> None:
    """Write ``tree`` (arrays only), the number of steps done and the loss history."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    arrays = {f"leaf_{i}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(tree))}
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, step=step, history=np.asarray(history), structure=np.array(_describe(tree)), **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def load_checkpoint(path: str | os.PathLike, like: Any) -> tuple[Any, int, np.ndarray]:
    """``(tree, step, history)``; ``like`` gives the structure, and must be that of the run that wrote the file."""
    try:
        file = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not a checkpoint of hybridax: {error}") from error
    with file:
        if "structure" not in file:
            raise CheckpointError(f"{path} is not a checkpoint of hybridax.")
        written, expected = str(file["structure"]), _describe(like)
        if written != expected:
            odd = [a for a in written.splitlines() if a not in expected.splitlines()]
            raise CheckpointError(
                f"{path} was written for other parameters or another optimizer (it holds {odd[:3] or 'fewer leaves'}). "
                "Remove it, or pass resume=False to overwrite it."
            )
        leaves = [jnp.asarray(file[f"leaf_{i}"]) for i in range(len(jax.tree.leaves(like)))]
        return jax.tree.unflatten(jax.tree.structure(like), leaves), int(file["step"]), file["history"]
