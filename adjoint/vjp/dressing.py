"""Giving a function another reverse-mode derivative.

What the function closes over is captured first and passed as an argument, so that a pullback accounts for it like for
everything else: nothing that f holds loses its gradient because f was dressed. What a user's products close over is
captured as well: they are part of a compiled solve, and read current arrays, traced ones too.

A custom derivative cannot be compared by value, and a compiled solve is found by what it computes; so a dressed function
carries a name, the same for equal pullbacks and never given twice, and `capture.fingerprint` goes by it.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from typing import Any, Callable, Hashable, NamedTuple

import jax
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from ..capture import DERIVATIVE_NAME, Captured, Opaque, capture, fingerprint
from ..params import Params, is_inexact, split_params


class Point(NamedTuple):
    """Where a pullback is asked for: ``p`` by its dynamic leaves, ``extra`` further arguments, ``held`` captured arrays.

    ``kept``: the arrays that the user's products captured.
    """

    u: Any
    p: tuple[Any, ...]
    t: Any
    extra: tuple[Any, ...]
    held: tuple[Any, ...]
    kept: tuple[Any, ...] = ()


class Bars(NamedTuple):
    """Cotangents: ``u`` in its structure, one for each inexact leaf of ``p`` and of ``held`` (others: anything), ``t``."""

    u: Any
    p: Any
    t: Any
    held: Any


#: (value of a point, the user's parameters split, cotangent, point, what ``products`` gave) -> cotangents
Pullback = Callable[[Callable[[Point], Any], Params, Any, Point, Any], Bars]


def with_pullback(f: Callable, pullback: Pullback, owner: Hashable, products: Callable | None = None) -> Callable:
    """``f(u, p, t, *extra)`` with the derivative of ``pullback``; the cotangent of ``extra`` is zero.

    ``owner``: equal for pullbacks that compute the same. ``products(lam, params, point)``: a pytree of arrays from the
    user's own functions, that ``pullback`` is to get.
    """

    def dressed(u, p, t, *extra):
        params = split_params(p)
        inner = lambda u, q, t, *x: f(u, params.rebuild(q), t, *x)  # noqa: E731
        got = capture(inner, u, params.dynamic, t, *extra)
        given = None if products is None else _capture_products(products, params, got, u, t, extra)
        name = _name_of(owner if given is None else (owner, _described(given)))

        def value(x: Point) -> Any:
            return got(x.held, x.u, x.p, x.t, *x.extra)

        @jax.custom_vjp
        def call(x: Point) -> Any:
            return value(x._replace(t=checkpoint_name(x.t, name)))

        def backward(x: Point, lam: Any) -> tuple[Point]:
            alone = x._replace(held=(), kept=())
            own = None if given is None else given(x.kept, [a for a in jax.tree.leaves(lam) if is_inexact(a)], alone)
            bars = pullback(value, params, lam, x, own)
            zero = lambda y: np.zeros(np.shape(y), y.dtype if is_inexact(y) else jax.dtypes.float0)  # noqa: E731
            # cotangents of what is not floating point are of no type
            some = lambda bars, ys: tuple(  # noqa: E731
                b if is_inexact(y) else zero(y) for b, y in zip(bars, ys, strict=True)
            )
            return (
                Point(
                    bars.u,
                    some(bars.p, x.p),
                    bars.t,
                    jax.tree.map(zero, x.extra),
                    some(bars.held, x.held),
                    tuple(map(zero, x.kept)),
                ),
            )

        call.defvjp(lambda x: (value(x), x), backward)
        kept = () if given is None else given.consts
        return call(Point(u, params.dynamic, t, extra, got.consts, kept))

    return dressed


def _capture_products(products: Callable, params: Params, got: Captured, u: Any, t: Any, extra: tuple) -> Captured:
    """The user's products as a function of (inexact leaves of lam, point); its other leaves have cotangents of no type."""
    outs = [v.aval for v in got.jaxpr.outvars]

    def formed(lam, x):
        it = iter(lam)
        whole = [next(it) if is_inexact(a) else np.zeros(a.shape, jax.dtypes.float0) for a in outs]
        return products(got.out_tree.unflatten(whole), params, x)

    lam = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in outs if is_inexact(a)]
    return capture(formed, lam, Point(u, params.dynamic, t, extra, ()), owner=products)


def _described(given: Captured) -> Hashable:
    try:
        return fingerprint(given.jaxpr)
    except Opaque:
        return fingerprint(given.jaxpr, loose=True)


_names: OrderedDict[Hashable, str] = OrderedDict()
_count = itertools.count()


def _name_of(owner: Hashable) -> str:
    name = _names[owner] = _names.get(owner) or f"{DERIVATIVE_NAME} {next(_count)}"
    _names.move_to_end(owner)
    while len(_names) > 64:
        _names.popitem(last=False)
    return name


def inexact_only(leaves: Any, values: Any) -> tuple[Any, ...]:
    """``values`` in order at the inexact leaves, None at the others."""
    it = iter(values)
    return tuple(next(it) if is_inexact(x) else None for x in leaves)


def automatic(value: Callable, point: Point, names: tuple[str, ...], lam: Any) -> dict[str, Any]:
    """JAX's own cotangents of the fields ``names`` of a point, in the form of `Bars`."""
    fields = {n: getattr(point, n) for n in names}
    moving = {n: [x for x in jax.tree.leaves(v) if is_inexact(x)] for n, v in fields.items()}

    def along(moving):
        full = {}
        for n, v in fields.items():
            leaves, tree = jax.tree.flatten(v)
            it = iter(moving[n])
            full[n] = tree.unflatten([next(it) if is_inexact(x) else x for x in leaves])
        return value(point._replace(**full))

    if not any(moving.values()):
        return {n: inexact_only(jax.tree.leaves(v), ()) for n, v in fields.items()}
    bars = jax.vjp(along, moving)[1](lam)[0]
    return {
        n: inexact_only(jax.tree.leaves(v), bars[n]) if n in ("p", "held") else jax.tree.unflatten(
            jax.tree.structure(v), bars[n]
        )
        for n, v in fields.items()
    }
