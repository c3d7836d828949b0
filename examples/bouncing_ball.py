"""Gravity and restitution of a bouncing ball, learned from the times of three bounces.

A ball is dropped from 1.5 m; a microphone hears when it hits the floor, and nothing else is measured.

    h' = v,   v' = -g;        where h falls through 0:   v <- -e v

A counter in the state ends the solve at the third bounce: whatever e is, no bounces pile up afterwards.

The loss is a function of event times alone, sum_k (tau_k - heard_k)^2, so that every gradient comes out of the event's
own condition: with tau_1 = sqrt(2 h0 / g) and tau_k = tau_1 (1 + 2 e + ... + 2 e^(k-1)) it is known in closed form.

Run: python examples/bouncing_ball.py [picture].
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from hybridax.models.plots import pyplot, save, tidy

import hybridax as hx

HEIGHT, TRUE_G, TRUE_E = 1.5, 9.81, 0.8
BOUNCES = 3


def fall(u, p, t):
    _, v, count = u
    return jnp.stack([v, -p["g"], jnp.zeros_like(count)])


def rebound(u, p, t):
    h, v, count = u
    return jnp.stack([h, -p["e"] * v, count + 1])


FLOOR = hx.CallbackSet(
    hx.ContinuousCallback(lambda u, p, t: u[0], None, rebound, save_positions=(False, False)),
    hx.DiscreteCallback(
        lambda u, p, t: u[2] > BOUNCES - 0.5, lambda u, p, t: u, terminate=True, save_positions=(True, False)
    ),
)


def problem():
    u0 = jnp.array([HEIGHT, 0.0, 0.0])
    return hx.ODEProblem(fall, u0, (0.0, 5.0), callback=FLOOR, max_events=8, max_steps=256, rtol=1e-6, atol=1e-6)


def params(g, e):
    return {"g": jnp.asarray(g), "e": jnp.asarray(e)}


def closed_form(g, e):
    """The times of the first three bounces."""
    first = np.sqrt(2 * HEIGHT / g)
    return first * np.array([1.0, 1 + 2 * e, 1 + 2 * e + 2 * e**2])


def main(picture: str = "out/bouncing_ball.png", steps: int = 25) -> hx.FitResult:
    prob, start = problem(), params(7.0, 0.9)
    heard = jnp.asarray(closed_form(TRUE_G, TRUE_E), prob.u0.dtype)

    def bounces(p):
        return hx.solve(prob, p=p).events.times[:BOUNCES]

    def loss(p, heard):
        return jnp.sum((bounces(p) - heard) ** 2)

    slope = jax.grad(lambda p: bounces(p)[2])(start)
    first = np.sqrt(2 * HEIGHT / 7.0)
    print(f"d tau_3 / d e = {float(slope['e']):.5f}, by hand {first * (2 + 4 * 0.9):.5f}")
    print(f"d tau_3 / d g = {float(slope['g']):.5f}, by hand {-closed_form(7.0, 0.9)[2] / 14:.5f}")

    result = hx.fit(loss, start, optimizer=optax.lbfgs(), steps=steps, data=heard, progress=sys.stderr.isatty())
    g, e = (float(result.params[k]) for k in "ge")
    print(f"loss {result.history[0]:.2e} -> {result.history[-1]:.2e} s^2 in {result.steps} steps")
    print(f"gravity      7.00 -> {g:.3f} m/s^2   (true {TRUE_G})")
    print(f"restitution  0.90 -> {e:.4f}          (true {TRUE_E})")
    draw(picture, prob, start, result.params, heard)
    print(f"picture: {picture}")
    return result


def draw(picture, prob, start, learned, heard):
    figure, (left, right) = pyplot().subplots(1, 2, figsize=(11, 4), layout="constrained", width_ratios=(2, 1))
    for p, label, style in ((start, "before", "--"), (learned, "learned", "-")):
        sol = hx.solve(prob, p=p, saveat=np.linspace(0.0, 5.0, 601))
        keep = np.asarray(sol.valid)
        left.plot(sol.ts[keep], sol.us[keep, 0], style, color="tab:blue" if style == "-" else "0.6", label=label)
        times = np.asarray(sol.events.times[:BOUNCES])
        right.plot(np.arange(1, 4), 1e3 * (times - np.asarray(heard)), "o" + style, label=label)
    left.plot(heard, np.zeros(BOUNCES), "v", color="tab:red", ms=9, label="heard", clip_on=False)
    left.set(xlabel="time [s]", ylabel="height [m]", title="three bounces tell gravity and restitution", ylim=(0, None))
    right.set(xlabel="bounce", ylabel="time, computed less heard [ms]", xticks=[1, 2, 3])
    tidy(left, right)
    save(figure, picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
