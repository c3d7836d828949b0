"""The peer diffrax: one solve with Tsit5 and its default step control, at the tolerance given."""

from __future__ import annotations

from comparison import Entry, installed

HERE = installed("diffrax")
DIRECT, BACKSOLVE = "RecursiveCheckpointAdjoint", "BacksolveAdjoint"


def rows(f, u0, t0, t1, p, tolerance, *, ts=None, backsolve=False, max_steps=4096):
    """The states at ``ts``, or at the end alone, of ``du/dt = f(u, p, t)``."""
    import diffrax

    return diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, u, p: f(u, p, t)),
        diffrax.Tsit5(),
        t0,
        t1,
        None,
        u0,
        p,
        saveat=diffrax.SaveAt(t1=True) if ts is None else diffrax.SaveAt(ts=ts),
        stepsize_controller=diffrax.PIDController(rtol=tolerance, atol=tolerance),
        adjoint=diffrax.BacksolveAdjoint() if backsolve else diffrax.RecursiveCheckpointAdjoint(),
        max_steps=max_steps,
    ).ys


def entry(loss, method=DIRECT, **options) -> Entry:
    return Entry("diffrax", method, loss if HERE else None, **options)
