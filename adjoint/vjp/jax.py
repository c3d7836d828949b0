"""JaxVJP: JAX differentiates the right-hand side."""

from __future__ import annotations

from dataclasses import dataclass

from .base import RHS


@dataclass(frozen=True)
class JaxVJP:
    """`jax.vjp` of the right-hand side; the default."""

    def dress(self, f: RHS) -> RHS:
        return f
