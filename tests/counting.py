"""Counting what runs: right-hand-side evaluations and their pullbacks inside compiled programs, and compilations."""

from __future__ import annotations

from contextlib import contextmanager

import jax
import numpy as np

COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


class Counter:
    """Counts evaluations of a right-hand side whose value ``(n,)`` passes through `tick`.

    ``forward`` counts evaluations, ``reverse`` their pullbacks; points of a batch count one each.
    """

    def __init__(self, n: int):
        self.n = n
        self.forward = self.reverse = 0
        self.tick = self._make()

    def reset(self) -> None:
        jax.effects_barrier()
        self.forward = self.reverse = 0

    def _make(self):
        def bump(name):
            def host(x):
                setattr(self, name, getattr(self, name) + np.size(x) // self.n)
                return np.asarray(x)

            return lambda x: jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="broadcast_all")

        forward, reverse = bump("forward"), bump("reverse")

        @jax.custom_vjp
        def tick(du):
            return forward(du)

        tick.defvjp(lambda du: (forward(du), None), lambda _, bar: (reverse(bar),))
        return tick


class Compilations:
    """How many programs were compiled since the start."""

    count = 0


_listening: list[Compilations] = []


def _listen(event: str, duration: float, **kwargs) -> None:
    if event == COMPILE_EVENT:
        for compilations in _listening:
            compilations.count += 1


jax.monitoring.register_event_duration_secs_listener(_listen)


@contextmanager
def compilations():
    """``with compilations() as c: ...`` and ``c.count`` programs were compiled."""
    counter = Compilations()
    _listening.append(counter)
    try:
        yield counter
    finally:
        _listening.remove(counter)
