"""The differentiable core: one forward lane function, and what stands for its derivative.

`make_core` returns ``core(args, theta) -> Result``. It composes with jit, vmap (the mapped axis becomes lanes), grad and
vmap in any order, and jvp of grad. Its derivative is the reverse pass of the sensitivity method, or that of the loop
itself: forwards along tangents, or backwards through a bounded loop.
"""

from __future__ import annotations

from typing import Any, Callable

import jax

from ..solvers.forward import ForwardArgs, ForwardOptions
from ..solvers.lanes import call_lanes
from ..solvers.record import Result
from ..solvers.system import System
from .calls import Calls
from .failed_lanes import without_gradient_if_failed
from .forward_mode import tangent_rule
from .reverse_mode import ReverseMode
from .sensealg import SensitivityMethod


def make_core(
    system: System,
    options: ForwardOptions,
    method: SensitivityMethod,
    args_tree: Any,
    theta_count: int,
    diff: tuple[int, ...],
) -> Callable[[ForwardArgs, tuple], Result]:
    """The core for one system and one set of static options; ``args_tree``: treedef of `ForwardArgs`."""
    calls = Calls(system, args_tree, theta_count, diff)
    if method.kind == "direct":
        options = options._replace(record=True, dense=True, bounded=True)
        function = calls.forward(options, mark=without_gradient_if_failed)
    elif method.kind == "forward":
        function = calls.forward(options, tangent_rule(calls.forward(options, mark=without_gradient_if_failed)))
    else:

        def plain(*flat, levels=()):
            return call_lanes(function, *flat, levels=levels)

        function = calls.forward(options, ReverseMode(calls, options, method, plain).derivative)
    tree = calls.tree(options)

    def core(args: ForwardArgs, theta: tuple) -> Result:
        return tree.unflatten(call_lanes(function, *jax.tree.leaves(args), *theta))

    return core
