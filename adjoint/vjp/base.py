"""The protocol of a VJP backend.

A backend is asked once for each solve to dress the right-hand side: it returns a function with the same values whose
reverse-mode derivative is the backend's. Whatever the reverse pass needs, ``lam' df/du``, ``lam' df/dp`` or
``lam' df/dt``, one by one or over many points at once, it takes from that function by `jax.vjp`; what it does not need
is not computed.
"""

from __future__ import annotations

from typing import Any, Callable, Protocol, runtime_checkable

RHS = Callable[[Any, Any, Any], Any]


@runtime_checkable
class VJPBackend(Protocol):
    """Anything with a method ``dress``; instances are hashable, as they are part of a compiled solve.

    A backend whose products cost as much for many points at once as one by one (on the host, say) has an attribute
    ``vectorises = False``: reverse passes then ask for no more products than they need.
    """

    def dress(self, f: RHS) -> RHS:
        """``f(u, p, t)`` with this backend's derivative; ``u``, ``p`` and the result in the user's own pytrees."""
        ...
