"""What did the patient take, and when? Doses and dose times of an oral drug, learned from blood levels.

Three tablets of 100 mg were prescribed, at 0, 8 and 16 h. The drug enters the gut, is absorbed at rate ka and leaves the
blood at rate ke; both rates and the volume V are known from this patient.

    gut' = -ka gut,   blood' = ka gut / V - ke blood;        at each t_k:   gut <- gut + dose_k

Twenty blood levels, with 2 % of noise, tell another story than the prescription. The dose times stand in a
PresetTimeCallback as a traced array, so that one gradient reaches doses and times alike.

Run: python examples/dosing.py [picture].
"""

import sys

import jax.numpy as jnp
import numpy as np
import optax
from hybridax.models.plots import pyplot, save, tidy

import hybridax as hx

KA, KE, VOLUME = 0.9, 0.15, 20.0  # 1/h, 1/h, litres
PRESCRIBED = {"doses": np.array([100.0, 100.0, 100.0]), "times": np.array([1.0, 8.0, 16.0])}
TAKEN = {"doses": np.array([100.0, 60.0, 130.0]), "times": np.array([1.6, 9.7, 14.8])}
SAMPLES = np.linspace(1.2, 24.0, 20)


def absorb(u, p, t):
    gut, blood = u
    return jnp.stack([-KA * gut, KA * gut / VOLUME - KE * blood])


def take(u, p, t):
    """The tablet whose time this is."""
    which = jnp.argmin(jnp.abs(p["times"] - t))
    return u.at[0].add(100.0 * p["doses"][which])


def levels(p, saveat=SAMPLES):
    """Blood levels [mg/l]; ``p``: doses in tablets of 100 mg, times in hours."""
    tablets = hx.PresetTimeCallback(p["times"], take, save_positions=(False, False))
    prob = hx.ODEProblem(absorb, jnp.zeros(2, p["times"].dtype), (0.0, 24.0), p)
    return hx.solve(prob, callback=tablets, saveat=saveat, rtol=1e-6, atol=1e-6, max_steps=256).us[:, 1]


def params(regimen):
    return {"doses": jnp.array(regimen["doses"] / 100), "times": jnp.array(regimen["times"])}


def main(picture: str = "out/dosing.png", steps: int = 400) -> hx.FitResult:
    start = params(PRESCRIBED)
    noise = 1 + 0.02 * np.random.default_rng(1).normal(size=SAMPLES.size)
    measured = levels(params(TAKEN)) * jnp.asarray(noise, start["times"].dtype)

    def loss(p, measured):
        return jnp.mean((levels(p) - measured) ** 2)

    rate = optax.cosine_decay_schedule(0.05, steps)
    result = hx.fit(loss, start, optimizer=optax.adam(rate), steps=steps, data=measured, progress=sys.stderr.isatty())
    p = result.params
    print(f"mean squared error {result.history[0]:.3f} -> {result.history[-1]:.4f} (mg/l)^2 in {result.steps} steps")
    print("tablet   prescribed         taken              learned")
    for k in range(3):
        given = [f"{r['doses'][k]:5.0f} mg at {r['times'][k]:5.2f} h" for r in (PRESCRIBED, TAKEN)]
        print(f"{k + 1:4d}   {given[0]}  {given[1]}  {100 * float(p['doses'][k]):6.1f} mg at {float(p['times'][k]):5.2f} h")
    draw(picture, start, p, measured)
    print(f"picture: {picture}")
    return result


def draw(picture, start, learned, measured):
    figure, axes = pyplot().subplots(figsize=(8, 4.2), layout="constrained")
    fine = np.linspace(0.0, 24.0, 481)
    for p, label, color in ((start, "as prescribed", "0.6"), (learned, "as learned", "tab:blue")):
        axes.plot(fine, levels(p, fine), color=color, label=label)
        times, doses = np.asarray(p["times"]), np.asarray(p["doses"])
        axes.vlines(times, 0, doses, color=color, lw=4, alpha=0.6)
    axes.plot(SAMPLES, measured, "o", color="tab:red", mfc="white", label="measured")
    axes.set(xlabel="time [h]", ylabel="blood level [mg/l]", title="tablets (bars: their times, and doses in 100 mg)")
    tidy(axes)
    save(figure, picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
