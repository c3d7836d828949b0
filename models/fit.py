"""`fit`: the training loop.

One compiled step does value, gradient and update; the loop around it shows progress, keeps the history, stops early and
writes checkpoints.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

from .checkpoint import load_checkpoint, save_checkpoint


class FitError(FloatingPointError):
    """The loss or a gradient was not finite; ``params`` are the last ones that gave a finite loss."""

    def __init__(self, message: str, params: Any, history: np.ndarray):
        super().__init__(message)
        self.params, self.history = params, history


@dataclass(frozen=True)
class FitResult:
    """params: after the last step. history ``(steps,)``: the loss before each step. opt_state: of the optimizer.

    steps: how many were done in all, those before a resume included. stopped: True if it stopped early.
    """

    params: Any
    history: np.ndarray
    opt_state: Any
    steps: int
    stopped: bool

    def plot(self, path: str | os.PathLike | None = None, **line: Any):
        """Draw the loss curve; returns the axes, and writes ``path`` if given. Needs the extra ``plot``."""
        from .plots import loss_curves

        return loss_curves({line.pop("label", "loss"): self.history}, path)


def fit(
    loss: Callable[..., Any],
    params: Any,
    *,
    steps: int,
    optimizer: optax.GradientTransformation | None = None,
    data: Any = None,
    progress: bool = True,
    checkpoint: str | os.PathLike | None = None,
    checkpoint_every: int = 100,
    resume: bool = True,
    patience: int | None = None,
    target: float | None = None,
    callback: Callable[[int, float, Any], Any] | None = None,
) -> FitResult:
    """Minimise ``loss(params)``, or ``loss(params, data)``, by ``steps`` updates of ``optimizer`` (Adam(1e-3)).

    params: any pytree; floating-point arrays are trained, everything else is carried untouched. data: arrays handed to
    the loss as an argument, so that they are not compiled in. checkpoint: a file, written every ``checkpoint_every``
    steps and at the end; with ``resume`` an existing one is continued from, bit for bit. patience: stop after so many
    steps without a new best loss; target: stop at or below this loss. callback: called as ``(step, loss, params)``
    after every step; a true answer stops.

    Raises `FitError`, with the last good parameters, when the loss or a gradient is not finite.
    """
    if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 0:
        raise ValueError(f"fit: steps must be a non-negative integer; got {steps!r}.")
    if checkpoint_every < 1:
        raise ValueError(f"fit: checkpoint_every must be positive; got {checkpoint_every!r}.")
    optimizer = optax.adam(1e-3) if optimizer is None else optimizer
    moving, fixed = eqx.partition(params, eqx.is_inexact_array)
    if not jax.tree.leaves(moving):
        raise ValueError("fit: params hold no floating-point array; there is nothing to train.")
    # the step donates its buffers: work on copies, the caller's arrays stay valid
    moving = jax.tree.map(lambda x: jnp.array(x, copy=True), moving)
    opt_state = optimizer.init(moving)
    history: list[float] = []
    done = 0
    if checkpoint is not None and resume and Path(checkpoint).exists():
        state = _arrays((moving, opt_state))
        loaded, done, old = load_checkpoint(checkpoint, state)
        moving, opt_state = eqx.combine(loaded, (moving, opt_state))
        history = [float(x) for x in old]
    step = _compiled_step(loss, fixed, optimizer)
    args = () if data is None else (data,)

    def save() -> None:
        if checkpoint is not None:
            save_checkpoint(checkpoint, _arrays((moving, opt_state)), done, np.asarray(history))

    best, since, stopped = min(history, default=np.inf), 0, False
    with tqdm(total=steps, initial=min(done, steps), disable=not progress, unit="step") as bar:
        while done < steps and not stopped:
            value, good, moving, opt_state = step(moving, opt_state, *args)
            value = float(value)
            if not bool(good):
                # a step that is not finite leaves parameters and optimizer as they were
                kept = eqx.combine(moving, fixed)
                save()
                raise FitError(
                    f"fit: at step {done} the loss is {value}, and it or its gradient is not finite. The parameters "
                    "before this step are in this error's .params; a smaller learning rate or gradient clipping "
                    "(optax.clip_by_global_norm) may help.",
                    kept,
                    np.asarray(history),
                )
            history.append(value)
            done += 1
            best, since = (value, 0) if value < best else (best, since + 1)
            bar.update()
            bar.set_postfix(loss=f"{value:.4g}", refresh=False)
            stopped = (patience is not None and since >= patience) or (target is not None and value <= target)
            if callback is not None:
                stopped = bool(callback(done, value, eqx.combine(moving, fixed))) or stopped
            if done % checkpoint_every == 0:
                save()
    save()
    return FitResult(eqx.combine(moving, fixed), np.asarray(history), opt_state, done, stopped)


def _arrays(tree: Any) -> Any:
    return eqx.filter(tree, eqx.is_array)


def _compiled_step(loss: Callable, fixed: Any, optimizer: optax.GradientTransformation) -> Callable:
    def objective(moving, *data):
        value = loss(eqx.combine(moving, fixed), *data)
        if jnp.shape(value) != ():
            raise ValueError(f"fit: the loss must be one number; got shape {jnp.shape(value)}.")
        return value

    def step(moving, opt_state, *data):
        value, grads = jax.value_and_grad(objective)(moving, *data)
        finite = [jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(grads)]
        good = jnp.all(jnp.stack([jnp.isfinite(value), *finite]))
        updates, new_state = optimizer.update(grads, opt_state, moving)
        keep = lambda new, old: jnp.where(good, new, old) if eqx.is_array(old) else new  # noqa: E731
        moving = jax.tree.map(keep, optax.apply_updates(moving, updates), moving)
        return value, good, moving, jax.tree.map(keep, new_state, opt_state)

    return jax.jit(step, donate_argnums=(0, 1))
