"""VJP backends: where the reverse pass gets its vector-Jacobian products from."""

from .base import VJPBackend
from .handwritten import HandWrittenVJP
from .jax import JaxVJP

__all__ = ["HandWrittenVJP", "JaxVJP", "VJPBackend"]
