"""VJP backends: where the reverse pass gets its vector-Jacobian products from."""

from .base import VJPBackend
from .finite_difference import FiniteDifferenceVJP
from .handwritten import HandWrittenVJP
from .host import HostVJP
from .jax import JaxVJP

__all__ = ["FiniteDifferenceVJP", "HandWrittenVJP", "HostVJP", "JaxVJP", "VJPBackend"]
