"""A neural controller swings a pendulum up, with a motor too weak to lift it.

The controller is a computer: it reads the pendulum every 0.1 s and holds its output in between (zero-order hold). The
held torque is a component of the state, and a PeriodicCallback writes it:

    angle' = speed,   speed' = (m g l sin(angle) - b speed + torque) / (m l^2),   torque' = 0
    every 0.1 s:      torque <- 5 tanh(network(cos(angle), sin(angle), speed))

with the angle 0 upright, m = l = 1, b = 0.1. Hanging horizontally the pendulum needs 9.81 Nm, the motor gives 5: it has to
pump. The cost of 3 s, the integral of height missing, speed and torque, is a running cost.

Run: python examples/pendulum_controller.py [picture].
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from hybridax.models.plots import pyplot, save, tidy

import hybridax as hx

GRAVITY, FRICTION, TORQUE = 9.81, 0.1, 5.0
PERIOD, END = 0.1, 3.0


def pendulum(u, p, t):
    angle, speed, torque = u
    return jnp.stack([speed, GRAVITY * jnp.sin(angle) - FRICTION * speed + torque, jnp.zeros_like(torque)])


def sample(u, network, t):
    """Read the pendulum, and set the torque until the next sample."""
    angle, speed, _ = u
    output = network(jnp.stack([jnp.cos(angle), jnp.sin(angle), speed / 5]))[0]
    return jnp.stack([angle, speed, TORQUE * jnp.tanh(output)])


def missing(u, p, t):
    """The running cost."""
    angle, speed, torque = u
    return 1 - jnp.cos(angle) + 0.01 * speed**2 + 0.001 * torque**2


CLOCK = hx.PeriodicCallback(sample, PERIOD, initial_affect=True, save_positions=(False, False))


def solve(network, **options):
    prob = hx.ODEProblem(pendulum, jnp.array([np.pi, 0.0, 0.0]), (0.0, END), network, callback=CLOCK)
    return hx.solve(prob, running_cost=missing, rtol=1e-5, atol=1e-5, max_steps=512, **options)


def loss(network):
    sol = solve(network)
    angle, speed, _ = sol.us[-1]
    return sol.cost / END + 1 - jnp.cos(angle) + 0.1 * speed**2


def main(picture: str = "out/pendulum_controller.png", steps: int = 300) -> hx.FitResult:
    start = hx.MLP((3, 16, 1), key=jax.random.key(1))
    optimizer = optax.adam(optax.cosine_decay_schedule(0.01, steps))
    result = hx.fit(loss, start, optimizer=optimizer, steps=steps, progress=sys.stderr.isatty())
    angle, speed, _ = np.asarray(solve(result.params).us[-1])
    print(f"loss {result.history[0]:.3f} -> {result.history[-1]:.3f} in {result.steps} steps")
    off = (np.degrees(angle) + 180) % 360 - 180
    print(f"after {END:g} s the pendulum stands {off:.1f} degrees from upright, at {speed:.2f} rad/s")
    draw(picture, start, result)
    print(f"picture: {picture}")
    return result


def draw(picture, start, result):
    figure, axes = pyplot().subplots(1, 3, figsize=(13, 4), layout="constrained")
    for network, label, color in ((start, "before", "0.6"), (result.params, "learned", "tab:blue")):
        sol = solve(network, saveat=np.linspace(0.0, END, 801))
        axes[0].plot(sol.ts, np.cos(sol.us[:, 0]), color=color, label=label)
        axes[1].plot(sol.ts, sol.us[:, 2], color=color, label=label)
    axes[0].set(xlabel="time [s]", ylabel="height [m]", title="the pendulum", ylim=(-1.05, 1.05))
    axes[1].set(xlabel="time [s]", ylabel="torque [Nm]", title="the controller, every 0.1 s")
    axes[2].plot(result.history, color="tab:blue")
    axes[2].set(xlabel="step", ylabel="loss", title="training")
    tidy(*axes)
    save(figure, picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
