"""Networks, hybrid right-hand sides, and the training loop."""

from .checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from .fit import FitError, FitResult, fit
from .hybrid import HybridRHS
from .mlp import MLP

__all__ = [
    "MLP",
    "CheckpointError",
    "FitError",
    "FitResult",
    "HybridRHS",
    "fit",
    "load_checkpoint",
    "save_checkpoint",
]
