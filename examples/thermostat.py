"""Set points of a thermostat, learned from what the heat pump should do.

The pump switches on where the temperature falls to the lower set point, and off where it rises to the upper one: a
two-sided threshold with memory (u1 is 1 while it heats).

    T' = (T_out - T) / tau + heating u1,   u1' = 0
    where T falls through low:  u1 <- 1          where T rises through high:  u1 <- 0

Wanted: 20.5 degrees on average over six hours, and one start every 30 minutes, neither more (wear) nor fewer (comfort).
The average is the integral of a running cost; the time between two starts is read from the event log. Both depend on the
set points only through the conditions of the two callbacks: all of their gradient is the implicit derivative of event times.

Run: python examples/thermostat.py [picture].
"""

import sys

import jax.numpy as jnp
import numpy as np
import optax
from hybridax.models.plots import pyplot, save, tidy

import hybridax as hx

OUTSIDE, TAU, HEATING = 2.0, 8.0, 5.0  # degrees, hours, degrees per hour
HOURS, WANTED_MEAN, WANTED_CYCLE = 6.0, 20.5, 0.5


def room(u, p, t):
    temperature, on = u
    return jnp.stack([(OUTSIDE - temperature) / TAU + HEATING * on, jnp.zeros_like(on)])


SWITCHES = hx.CallbackSet(
    hx.ContinuousCallback(
        lambda u, p, t: u[0] - p["low"], None, lambda u, p, t: u.at[1].set(1.0), save_positions=(False, False)
    ),
    hx.ContinuousCallback(
        lambda u, p, t: u[0] - p["high"], lambda u, p, t: u.at[1].set(0.0), None, save_positions=(False, False)
    ),
)


def solve(p, **options):
    prob = hx.ODEProblem(room, jnp.array([20.5, 0.0], p["low"].dtype), (0.0, HOURS), p, callback=SWITCHES)
    deviation = lambda u, p, t: u[0] - WANTED_MEAN  # noqa: E731
    return hx.solve(prob, running_cost=deviation, max_events=64, max_steps=512, rtol=1e-6, atol=1e-6, **options)


def performance(p):
    """Mean temperature less the wanted one, and the hours from one start of the pump to the next."""
    sol = solve(p)
    starts = sol.events.callback == 0
    first = jnp.argmax(starts)  # the pump starts at every second event
    return sol.cost / HOURS, sol.events.times[first + 2] - sol.events.times[first]


def loss(p):
    deviation, cycle = performance(p)
    return deviation**2 + (cycle - WANTED_CYCLE) ** 2


def main(picture: str = "out/thermostat.png", steps: int = 300) -> hx.FitResult:
    start = {"low": jnp.asarray(19.0), "high": jnp.asarray(21.0)}
    rate = optax.cosine_decay_schedule(0.05, steps)
    result = hx.fit(loss, start, optimizer=optax.adam(rate), steps=steps, progress=sys.stderr.isatty())
    print(f"loss {result.history[0]:.4f} -> {result.history[-1]:.1e} in {result.steps} steps")
    for name, p in (("start", start), ("learned", result.params)):
        deviation, cycle = performance(p)
        print(
            f"{name:8s} low {float(p['low']):6.3f}, high {float(p['high']):6.3f} degrees: "
            f"mean {WANTED_MEAN + float(deviation):.3f} degrees, a start every {60 * float(cycle):.1f} minutes"
        )
    draw(picture, start, result.params)
    print(f"picture: {picture}")
    return result


def draw(picture, start, learned):
    figure, axes = pyplot().subplots(2, 1, figsize=(9, 5), sharex=True, layout="constrained")
    for ax, (p, title) in zip(axes, ((start, "before"), (learned, "learned: every half hour, 20.5 degrees")), strict=True):
        sol = solve(p, saveat=np.linspace(0.0, HOURS, 721))
        keep = np.asarray(sol.valid)
        t, temperature, on = np.asarray(sol.ts)[keep], *np.asarray(sol.us)[keep].T
        ax.plot(t, temperature, color="tab:blue", label="temperature")
        ax.fill_between(t, 18.8, 21.4, where=on > 0.5, color="tab:orange", alpha=0.2, lw=0, label="heating")
        for name in ("low", "high"):
            ax.axhline(float(p[name]), color="0.4", lw=0.8, ls="--")
        ax.set(title=title, ylabel="degrees", ylim=(18.8, 21.4))
    axes[1].set(xlabel="time [h]")
    tidy(*axes)
    axes[0].legend(frameon=False, loc="upper right", ncol=2)
    axes[1].legend().remove()
    save(figure, picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
