"""Step-size control: error norm, PI controller, first step.

The controller is proportional-integral (Hairer & Wanner, Solving ODEs II, section IV.2): after an accepted step

    h_new = h clip(0.9 err^(-0.7/q) err_previous^(0.4/q), 0.2, 10),

with q the order of the pair; after a rejection the integral part is dropped and the step only shrinks. The first
step follows Hairer, Norsett & Wanner, Solving ODEs I, section II.4. No gradient passes through a step size:
a reverse pass differentiates the step sequence that was taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array, lax


@dataclass(frozen=True)
class PIController:
    """Constants of the controller; ``order`` is that of the higher method of the pair."""

    order: int
    safety: float = 0.9
    shrink: float = 0.2
    grow: float = 10.0
    proportional: float = 0.7
    integral: float = 0.4

    def factor(self, error: Array, log_error: Array, log_previous: Array, accepted: Array) -> Array:
        """By how much to change ``h`` after a step with scaled error ``error`` (NaN counts as a rejection).

        Powers are made of logarithms that are known: where lanes are many, they would take a third of the time of a step.
        """
        e = error
        damped = self.integral * log_previous - self.proportional * log_error
        factor = self.safety * jnp.exp(jnp.where(accepted, damped, -log_error) / self.order)
        factor = jnp.clip(factor, self.shrink, jnp.where(accepted, self.grow, 1.0).astype(e.dtype))
        return jnp.where(jnp.isfinite(error), factor, np.asarray(self.shrink, e.dtype))


def rms(x: Array) -> Array:
    """Root mean square over the last axis; complex entries count by their modulus. 0 for an empty state."""
    if x.shape[-1] == 0:
        return jnp.zeros(x.shape[:-1], jnp.abs(x).dtype)
    x = lax.stop_gradient(x)
    square = (x * jnp.conj(x)).real if jnp.iscomplexobj(x) else x * x
    return jnp.sqrt(jnp.mean(square, -1))


def scaled_error(error: Array, u: Array, u1: Array, rtol: Array, atol: Array) -> Array:
    """``rms(error / (atol + rtol max(|u|, |u1|)))``, shape ``(B,)``; ``rtol, atol (B,)``."""
    scale = atol[:, None] + rtol[:, None] * jnp.maximum(jnp.abs(u), jnp.abs(u1))
    return rms(error / scale)


def first_step(
    rhs: Callable, t: Array, u: Array, k0: Array, span: Array, order: int, rtol: Array, atol: Array
) -> Array:
    """A first step length with the sign of ``span``, never longer than it; costs one evaluation."""
    real = span.dtype
    scale = atol[:, None] + rtol[:, None] * jnp.abs(u)
    d0, d1 = rms(u / scale), rms(k0 / scale)
    tiny = (d0 < 1e-5) | (d1 < 1e-5)
    h0 = jnp.where(tiny, np.asarray(1e-6, real), 0.01 * d0 / jnp.where(tiny, 1.0, d1).astype(real))
    h0 = jnp.minimum(h0, jnp.abs(span))
    signed = h0 * jnp.sign(span)
    u1 = u + signed[:, None] * k0
    d2 = rms((rhs(t + signed, u1) - k0) / scale) / jnp.where(h0 > 0, h0, 1.0).astype(real)
    top = jnp.maximum(d1, d2)
    h1 = jnp.where(
        top <= 1e-15,
        jnp.maximum(np.asarray(1e-6, real), h0 * 1e-3),
        (0.01 / jnp.where(top <= 1e-15, 1.0, top).astype(real)) ** (1 / (order + 1)),
    )
    h = jnp.minimum(jnp.minimum(100 * h0, h1), jnp.abs(span))
    h = jnp.where(jnp.isfinite(h) & (h > 0), h, jnp.minimum(np.asarray(1e-6, real), jnp.abs(span)))
    return lax.stop_gradient(h * jnp.sign(span))
