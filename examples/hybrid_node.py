"""A hybrid neural ODE that sees its state only at samples, trained through four adjoints.

The true system is linear, with an input that is sampled every 0.1: (u2, u3) <- -3 (u0, u1). The model replaces the
dynamics by a network of the four components, and learns it from the limits on both sides of the jumps.

    u0' = u0 + u1 + u2,   u1' = u0 + u1 + u3       (truth)
    (u0, u1)' = MLP(u)                             (model, 4-50-2, tanh)

Run: make run, or python examples/hybrid_node.py [picture].
"""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from hybridax.models.plots import loss_curves, pyplot, save

import hybridax as hx

STEPS, RATE = 200, 0.0025
METHODS = {
    "BacksolveAdjoint": hx.BacksolveAdjoint(),
    "InterpolatingAdjoint": hx.InterpolatingAdjoint(),
    "QuadratureAdjoint": hx.QuadratureAdjoint(),
    "DiscreteAdjoint": hx.DiscreteAdjoint(),
}


def truth(u, p, t):
    return jnp.stack([u[0] + u[1] + u[2], u[0] + u[1] + u[3], jnp.zeros_like(u[0]), jnp.zeros_like(u[0])])


def sample(u, p, t):
    """The input becomes -3 times the state at the sample."""
    return jnp.concatenate([u[:2], -3 * u[:2]])


def main(picture: str = "out/hybrid_node.png") -> int:
    u0 = jnp.array([2.0, 0.0, 0.0, 0.0])
    callback = hx.PeriodicCallback(sample, 0.1, initial_affect=True, save_positions=(True, True))
    options = dict(callback=callback, rtol=1e-6, atol=1e-6)
    data = hx.solve(hx.ODEProblem(truth, u0, (0.0, 1.0)), **options)
    model = hx.HybridRHS(hx.MLP((4, 50, 2), key=jax.random.key(0)), acts_on=2)
    prob = hx.ODEProblem(hx.HybridRHS.rhs, u0, (0.0, 1.0), model, **options)

    results = {}
    for name, method in METHODS.items():

        def loss(p, rows, method=method):
            sol = hx.solve(prob, p=p, sensealg=method)
            return jnp.sum((sol.us[:, :2] - rows[:, :2]) ** 2)

        clock = [time.perf_counter()]
        result = hx.fit(
            loss,
            model,
            optimizer=optax.adam(RATE),
            steps=STEPS,
            data=data.us,
            progress=sys.stderr.isatty(),
            callback=lambda *_, clock=clock: clock.append(time.perf_counter()),
        )
        results[name] = result
        after = float(loss(result.params, data.us))
        rate = (STEPS - 1) / (clock[-1] - clock[1])
        print(
            f"{name:22s} loss {result.history[0]:8.4f} -> {after:.4f}   {rate:6.0f} steps/s"
            f"   ({clock[1] - clock[0]:.1f} s to compile)"
        )

    curves = np.stack([r.history for r in results.values()])
    spread = float(np.max(np.ptp(curves, axis=0) / curves.max(axis=0)))
    print(f"largest relative distance between the four loss curves: {spread:.1e}")
    draw(picture, prob, results, data)
    print(f"picture: {picture}")
    return 0 if max(r.history[-1] for r in results.values()) < 0.5 and spread < 0.05 else 1


def draw(picture, prob, results, data):
    """Data, the trained trajectory with its jumps, and the loss curves."""
    figure, (left, middle, right) = pyplot().subplots(1, 3, figsize=(13, 4.2), layout="constrained")
    trained = hx.solve(prob, p=results["DiscreteAdjoint"].params, saveat=np.linspace(0.0, 1.0, 201))
    for axes, first, title in ((left, 0, "state"), (middle, 2, "input, sampled every 0.1: it jumps")):
        for i, color in ((first, "tab:blue"), (first + 1, "tab:red")):
            axes.plot(trained.ts, trained.us[:, i], color=color, lw=2, label=f"$u_{i}$, trained")
            axes.plot(data.ts, data.us[:, i], "o", color=color, ms=5, mfc="white", mew=1.3, label=f"$u_{i}$, data")
        axes.set(xlabel="time", title=title)
    left.set(ylim=(-0.1, 2.3))
    middle.set(ylim=(-6.3, 0.9))
    loss_curves({name: result.history for name, result in results.items()}, axes=right)
    right.set(title="four adjoints, one loss curve")
    for axes in (left, middle, right):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, ncol=1 if axes is right else 2, loc="upper right")
    save(figure, picture)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
