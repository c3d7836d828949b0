"""A leaky integrate-and-fire neuron learns to spike at given times.

Twenty synapses fire once each; synapse k adds its weight w_k to the current at its time. The membrane leaks, and where
it reaches the threshold the neuron spikes and is reset: a discontinuity that gradients pass exactly, without the surrogate
derivatives that step-by-step simulation of spikes needs.

    v' = (i - v) / 10 ms,   i' = -i / 5 ms;      synapse k: i <- i + w_k;      where v rises through 1: v <- 0

The loss is the squared distance of the first three spikes from 20, 33 and 52 ms.

Run: python examples/spiking_neuron.py [picture].
"""

import sys

import jax.numpy as jnp
import numpy as np
import optax
from hybridax.models.plots import pyplot, save, tidy

import hybridax as hx

MEMBRANE, SYNAPSE, THRESHOLD = 10.0, 5.0, 1.0  # ms, ms, units of the membrane potential
END = 65.0
INPUTS = np.linspace(2.0, 59.0, 20)
WANTED = np.array([20.0, 33.0, 52.0])


def neuron(u, p, t):
    v, i = u
    return jnp.stack([(i - v) / MEMBRANE, -i / SYNAPSE])


def receive(u, weights, t):
    """The synapse whose time this is."""
    return u.at[1].add(weights[jnp.argmin(jnp.abs(jnp.asarray(INPUTS, u.dtype) - t))])


EVENTS = hx.CallbackSet(
    hx.PresetTimeCallback(INPUTS, receive, save_positions=(False, False)),
    hx.ContinuousCallback(lambda u, p, t: u[0] - THRESHOLD, lambda u, p, t: u.at[0].set(0.0), None),
)


def solve(weights, **options):
    prob = hx.ODEProblem(neuron, jnp.zeros(2, weights.dtype), (0.0, END), weights, callback=EVENTS)
    return hx.solve(prob, max_events=12, max_steps=512, rtol=1e-5, atol=1e-7, **options)


def spikes(weights):
    """The times of the first spikes [ms]: the events of callback 1, in order."""
    events = solve(weights).events
    return jnp.sort(jnp.where(events.callback == 1, events.times, jnp.inf))[: len(WANTED)]


def loss(weights, wanted):
    times = spikes(weights)
    # a spike that does not come is as good as one at the end: no gradient, but no infinity either
    return jnp.sum((jnp.where(jnp.isfinite(times), times, END) - wanted) ** 2)


def main(picture: str = "out/spiking_neuron.png", steps: int = 300) -> hx.FitResult:
    start = jnp.full(len(INPUTS), 1.0)
    wanted = jnp.asarray(WANTED, start.dtype)
    rate = optax.cosine_decay_schedule(0.02, steps)
    optimizer = optax.chain(optax.clip_by_global_norm(10.0), optax.adam(rate))
    result = hx.fit(loss, start, optimizer=optimizer, steps=steps, data=wanted, progress=sys.stderr.isatty())
    show = lambda w: ", ".join(f"{float(t):.2f}" for t in spikes(w))  # noqa: E731
    print(f"loss {result.history[0]:.2f} -> {result.history[-1]:.2e} ms^2 in {result.steps} steps")
    print(f"spikes before {show(start)} ms\nspikes after  {show(result.params)} ms   (wanted {', '.join(map(str, WANTED))})")
    draw(picture, start, result.params)
    print(f"picture: {picture}")
    return result


def draw(picture, start, learned):
    figure, (top, bottom) = pyplot().subplots(
        2, 1, figsize=(9, 5.4), sharex=True, layout="constrained", height_ratios=(2, 1)
    )
    for weights, label, color in ((start, "before", "0.6"), (learned, "learned", "tab:blue")):
        sol = solve(weights, saveat=np.linspace(0.0, END, 651))
        keep = np.asarray(sol.valid)
        top.plot(np.asarray(sol.ts)[keep], np.asarray(sol.us)[keep, 0], color=color, label=label)
    for t in WANTED:
        top.axvline(t, color="tab:red", lw=0.9, ls="--", label="wanted spike" if t == WANTED[0] else None)
    top.axhline(THRESHOLD, color="k", lw=0.6)
    top.set(ylabel="membrane potential", title="a spike for each dashed line")
    bottom.bar(INPUTS - 0.4, np.asarray(start), 0.8, color="0.6", label="before")
    bottom.bar(INPUTS + 0.4, np.asarray(learned), 0.8, color="tab:blue", label="learned")
    bottom.set(xlabel="time [ms]", ylabel="synaptic weight")
    tidy(top, bottom)
    top.legend(frameon=False, loc="lower right")
    save(figure, picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
