"""`fit`: the training loop.

One compiled step does value, gradient and update; the loop around it shows progress, keeps the history, stops early and
writes checkpoints.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

from .checkpoint import load_checkpoint, save_checkpoint


class FitError(FloatingPointError):
    """The loss, a gradient or an update was not finite at ``step``.

    params: the last with which the loss was finite. history ``(step,)``: the losses until then.
    """

    def __init__(self, message: str, params: Any, history: np.ndarray):
        super().__init__(message)
        self.params, self.history, self.step = params, history, len(history)


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

    def plot(self, path: str | os.PathLike | None = None, *, label: str = "loss") -> Any:
        """Draw the loss curve; returns the axes, and writes ``path`` if given. Needs the extra ``plot``."""
        from .plots import loss_curves

        return loss_curves({label: self.history}, path)


def fit(
    loss: Callable[..., Any],
    params: Any,
    *,
    steps: int,
    optimizer: optax.GradientTransformation | None = None,
    data: Any = None,
    batch: Callable[[int], Any] | None = None,
    progress: bool = True,
    checkpoint: str | os.PathLike | None = None,
    checkpoint_every: int = 100,
    resume: bool = True,
    patience: int | None = None,
    tolerance: float = 0.0,
    target: float | None = None,
    callback: Callable[[int, float, Any], Any] | None = None,
) -> FitResult:
    """Minimise ``loss(params)``, or ``loss(params, data)``, by ``steps`` updates of ``optimizer`` (Adam(1e-3)).

    params: any pytree; its real or complex floating-point arrays are trained, everything else is carried untouched.
    data: arrays handed to the loss as an argument, so that they are not compiled in. batch: in place of data, a function
    from the step's index 0, 1, ... to that step's data, of one shape throughout.

    checkpoint: a file, written every ``checkpoint_every`` steps and at the end; with ``resume`` an existing one is
    continued from, bit for bit, until ``steps`` were done in all. patience: stop after so many steps in a row without
    a loss more than ``tolerance`` below the best; target: stop at or below this loss. callback: called as
    ``(step, loss, params)`` after every step, with the number of steps done, the loss before the step and the params
    after it; a true answer stops.

    Raises `FitError`, with the last parameters of finite loss, when the loss, a gradient or an update is not finite: the
    checkpoint then holds the state that they belong to. Raises `CheckpointError` when the checkpoint is not one of this run.

    Cost: one compilation, and one synchronisation with the device per step. Optimizers that evaluate the loss
    themselves (optax.lbfgs) work too.
    """
    if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 0:
        raise ValueError(f"fit: steps must be a non-negative integer; got {steps!r}.")
    if checkpoint_every < 1:
        raise ValueError(f"fit: checkpoint_every must be positive; got {checkpoint_every!r}.")
    if data is not None and batch is not None:
        raise ValueError("fit: give data or batch, not both.")
    if optimizer is not None and not hasattr(optimizer, "update"):
        raise TypeError(f"fit: optimizer must be one of optax, as optax.adam(1e-3); got {optimizer!r}.")
    optimizer = optax.with_extra_args_support(optax.adam(1e-3) if optimizer is None else optimizer)
    moving, fixed = eqx.partition(params, eqx.is_inexact_array)
    if not jax.tree.leaves(moving):
        raise ValueError("fit: params hold no floating-point array; there is nothing to train.")
    moving = _own(moving)
    with _lenient():
        opt_state = _own(optimizer.init(moving))
    history: list[float] = []
    if checkpoint is not None and resume and Path(checkpoint).exists():
        (moving, opt_state), _, old = load_checkpoint(checkpoint, (moving, opt_state))
        history = old.tolist()
    saved = len(history)
    early = _EarlyStop(patience, tolerance, target, history)
    # what a callback is given stays valid, and so do the parameters before a step: nothing is donated
    step = _compiled_step(loss, fixed, optimizer)

    def save() -> None:
        nonlocal saved
        if checkpoint is not None and saved != len(history):
            save_checkpoint(checkpoint, (moving, opt_state), len(history), history)
            saved = len(history)

    stopped, before = early.now, None
    with tqdm(total=steps, initial=min(saved, steps), disable=not progress, unit="step") as bar:
        while len(history) < steps and not stopped:
            given = data if batch is None else batch(len(history))
            answer, *new = step(moving, opt_state, *(() if given is None else (given,)))
            value, finite = jax.device_get(answer)
            if not (np.isfinite(value) and finite.all()):
                error = _explain(len(history), value, finite, moving), np.asarray(history)
                if before is not None and not np.isfinite(value):
                    # the step before this one led here
                    (moving, opt_state), history = before, history[:-1]
                save()
                raise FitError(error[0], eqx.combine(moving, fixed), error[1])
            before, (moving, opt_state) = (moving, opt_state), new
            history.append(float(value))
            bar.update()
            bar.set_postfix(loss=f"{value:.4g}", refresh=False)
            stopped = early.after(history[-1])
            if callback is not None:
                stopped = bool(callback(len(history), history[-1], eqx.combine(moving, fixed))) or stopped
            if len(history) % checkpoint_every == 0:
                save()
    save()
    return FitResult(eqx.combine(moving, fixed), np.asarray(history), opt_state, len(history), stopped)


class _EarlyStop:
    """Whether to stop, as a function of the whole history: a resumed run stops where an uninterrupted one does."""

    def __init__(self, patience: int | None, tolerance: float, target: float | None, history: Iterable[float]):
        self.patience, self.tolerance, self.target = patience, tolerance, target
        self.best, self.since, self.now = np.inf, 0, False
        for value in history:
            self.after(value)

    def after(self, value: float) -> bool:
        self.best, self.since = (value, 0) if value < self.best - self.tolerance else (self.best, self.since + 1)
        weary = self.patience is not None and self.since >= self.patience
        self.now = weary or (self.target is not None and value <= self.target)
        return self.now


def _own(tree: Any) -> Any:
    """Copies of all arrays, without weak types.

    The caller may change or donate its own; and a weak type would make the second step differ in type from the first, and
    compile again.
    """

    def copy(x: Any) -> Any:
        if not isinstance(x, (jax.Array, np.ndarray, np.generic)):
            return jnp.asarray(x) if isinstance(x, (bool, int, float, complex)) else x
        return x.copy() if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else jnp.array(x, dtype=x.dtype, copy=True)

    return jax.tree.map(copy, tree)


@contextlib.contextmanager
def _lenient() -> Iterator[None]:
    """optax promotes dtypes and ranks freely; a user's strict settings are for the user's own code."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def _explain(step: int, value: Any, finite: np.ndarray, moving: Any) -> str:
    what = f"the loss is {value}"
    if np.isfinite(value):
        names = [jax.tree_util.keystr(k) or "params" for k, _ in jax.tree_util.tree_leaves_with_path(moving)]
        first = names[int(np.argmin(finite))]
        what += f", but the gradient or the update of {first} is not finite"
    return (
        f"fit: at step {step} {what}. The last parameters with a finite loss are in this error's .params; a smaller "
        "learning rate or gradient clipping (optax.clip_by_global_norm) may help."
    )


def _compiled_step(loss: Callable, fixed: Any, optimizer: optax.GradientTransformationExtraArgs) -> Callable:
    """``(moving, opt_state, *data) -> ((value, finite (leaves,)), moving, opt_state)``."""

    def objective(moving, *data):
        value = loss(eqx.combine(moving, fixed), *data)
        if not jax.tree_util.all_leaves([value]):
            raise ValueError(f"fit: the loss must be one real number; got a {type(value).__name__}.")
        if jnp.shape(value) != () or not jnp.issubdtype(jnp.result_type(value), jnp.floating):
            raise ValueError(
                f"fit: the loss must be one real number; got {jnp.result_type(value)} of shape {jnp.shape(value)}."
            )
        return value

    def step(moving, opt_state, *data):
        value, grads = jax.value_and_grad(objective)(moving, *data)
        # for a complex parameter JAX gives the conjugate of the direction of steepest ascent
        grads = jax.tree.map(jnp.conj, grads)
        with _lenient():
            again = lambda q: objective(q, *data)  # noqa: E731
            updates, new_state = optimizer.update(grads, opt_state, moving, value=value, grad=grads, value_fn=again)
            new = optax.apply_updates(moving, updates)
        ok = lambda x, g: jnp.all(jnp.isfinite(x) & jnp.isfinite(g))  # noqa: E731
        finite = jnp.stack(jax.tree.leaves(jax.tree.map(ok, new, grads)))
        return (value, finite), new, new_state

    return jax.jit(step)
