"""Checkpoints of a training run: written atomically, without pickle.

A checkpoint is one ``.npz`` file: the arrays of a pytree in order, the step, the loss history, and a list of the arrays'
paths, shapes and dtypes. It is written beside its place and moved there, so that a kill leaves the old or the new one.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

FORMAT = 1


class CheckpointError(ValueError):
    """A file is not a checkpoint, or not one of the run that wants to resume from it."""


def save_checkpoint(path: str | os.PathLike, tree: Any, step: int, history: Any) -> None:
    """Write the arrays of ``tree``, the number of steps done and the loss history ``(step,)``.

    Leaves that are not arrays (static settings, functions) are not written: they come from the program that resumes.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {f"leaf_{i}": _to_host(x) for i, x in enumerate(jax.tree.leaves(_arrays(tree)))}
    fields: dict[str, Any] = dict(format=FORMAT, step=step, history=np.asarray(history), structure=_describe(tree))
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            np.savez(file, **fields, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def load_checkpoint(path: str | os.PathLike, like: Any) -> tuple[Any, int, np.ndarray]:
    """``(tree, step, history)``: the pytree ``like`` with its arrays replaced by the file's, to the last bit.

    Raises `CheckpointError` if the file is damaged or of another kind, or if its arrays differ from those of ``like``
    in path, shape or dtype; FileNotFoundError if there is none.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            fields = {name: file[name] for name in file.files}
        if int(fields["format"]) != FORMAT:
            raise CheckpointError(f"{path} has format {int(fields['format'])}; this version reads {FORMAT}.")
        written, step, history = str(fields["structure"]), int(fields["step"]), fields["history"]
    except (FileNotFoundError, CheckpointError):
        raise
    # np.load gives an array without these methods for a bare .npy file, and meets cut-off files in several ways
    except (OSError, ValueError, EOFError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise CheckpointError(
            f"{path} is not a checkpoint of hybridax, or is damaged ({error}). Remove it, or name another file."
        ) from error
    _compare(path, written.splitlines(), _describe(like).splitlines())
    arrays = _arrays(like)
    leaves = [_to_device(fields[f"leaf_{i}"], x) for i, x in enumerate(jax.tree.leaves(arrays))]
    return eqx.combine(jax.tree.unflatten(jax.tree.structure(arrays), leaves), like), step, history


def _compare(path: Any, written: list[str], expected: list[str]) -> None:
    if written == expected:
        return
    only_file = [x for x in written if x not in expected][:3]
    only_here = [x for x in expected if x not in written][:3]
    raise CheckpointError(
        f"{path} was written for other parameters or another optimizer: only the file has {only_file}, only this run "
        f"has {only_here}. Remove it, name another file, or pass resume=False to overwrite it."
    )


def _arrays(tree: Any) -> Any:
    return eqx.filter(tree, lambda x: isinstance(x, (jax.Array, np.ndarray)))


def _describe(tree: Any) -> str:
    leaves = jax.tree_util.tree_leaves_with_path(_arrays(tree))
    return "\n".join(f"{jax.tree_util.keystr(k)}:{x.shape}:{x.dtype}" for k, x in leaves)


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _to_host(x: Any) -> np.ndarray:
    x = np.asarray(jax.random.key_data(x) if _is_key(x) else x)
    # .npz does not know bfloat16 and its kin: their bits are kept
    return x.view(f"u{x.dtype.itemsize}") if x.dtype.kind == "V" else x


def _to_device(x: np.ndarray, like: Any) -> Any:
    if _is_key(like):
        return jax.random.wrap_key_data(jnp.asarray(x), impl=jax.random.key_impl(like))
    dtype = np.dtype(like.dtype)
    return jnp.array(x.view(dtype) if dtype.kind == "V" else x)
