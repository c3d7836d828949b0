"""Columns that can be differenced together: a colouring of a sparse Jacobian.

Two columns without a common row can be perturbed in one evaluation, and their differences told apart by the rows.
Greedy, largest column first. Source: Curtis, Powell & Reid, On the estimation of sparse Jacobian matrices, J. Inst.
Maths Applics 13 (1974) 117-119.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def check_pattern(sparsity: Any) -> np.ndarray:
    """A square boolean pattern, from a dense or a SciPy sparse matrix."""
    pattern = np.asarray(sparsity.toarray() if hasattr(sparsity, "toarray") else sparsity) != 0
    if pattern.ndim != 2 or pattern.shape[0] != pattern.shape[1]:
        raise ValueError(f"HostVJP: sparsity must be a square matrix, df_i/du_j at (i, j); got shape {pattern.shape}.")
    return pattern


def colour(pattern: np.ndarray) -> list[np.ndarray]:
    """Groups of columns of ``pattern (n, n)`` of which no two share a row; empty columns are in no group."""
    groups: list[list[int]] = []
    taken: list[np.ndarray] = []
    for j in np.argsort(-pattern.sum(0), kind="stable"):
        column = pattern[:, j]
        if not column.any():
            continue
        for group, rows in zip(groups, taken, strict=True):
            if not np.any(rows & column):
                group.append(int(j))
                rows |= column
                break
        else:
            groups.append([int(j)])
            taken.append(column.copy())
    return [np.array(group) for group in groups]
