"""A circuit whose diodes are compiled code that JAX cannot trace, learned from a measured voltage.

A rectifier charges a capacitor through a string of LEDs with a series resistance, and a pulsed load takes a charge out of
it every 10 ms. Of their law  V = a ln(1 + I / I_s) + r I  the current is a Lambert W function, which SciPy has in C and
JAX has not:

    C v' = I(s(t) - v) - v / R,      s(t) = 5 sin(100 pi t),        v <- v - q / C  every 10 ms

The simulator below is NumPy and SciPy alone, with its vector-Jacobian product by the implicit function theorem; it serves
many points in one call. The saturation current I_s, the resistance r and the load R are found from 61 samples of v by
least squares. Its Jacobian is 61 reverse passes at once, `jax.jacrev`, which reach the simulator as one batch.

Run: python examples/host_simulator.py [picture].
"""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from hybridax.models.plots import pyplot, save
from scipy.optimize import least_squares
from scipy.special import lambertw

import hybridax as hx

jax.config.update("jax_enable_x64", True)

CAPACITY, PULSE, SLOPE = 1e-4, 2e-5, 0.25  # farad, coulomb, volt
TRUTH = {"I_s": 1e-6, "r": 12.0, "R": 1000.0}  # ampere, ohm, ohm


# ------------------------------------------------------------------ the simulator: nothing of JAX here
def diode(v, p):
    """Current, and its derivatives with respect to v and to the logarithms of I_s and r."""
    i_s, r = np.exp(p["I_s"]), np.exp(p["r"])
    w = lambertw(i_s * r / SLOPE * np.exp((v + i_s * r) / SLOPE)).real
    current, slope = SLOPE / r * w - i_s, w / (r * (1 + w))
    return current, slope, {"I_s": current / (1 + w), "r": -slope * r * current}


def source(t):
    return 5 * np.sin(100 * np.pi * t)[..., None]


def rhs(du, u, p, t):
    du[...] = (diode(source(t) - u, p)[0] - u / np.exp(p["R"])) / CAPACITY


def vjp_u(lam, u, p, t):
    return -lam * (diode(source(t) - u, p)[1] + 1 / np.exp(p["R"])) / CAPACITY


def vjp_p(lam, u, p, t):
    by_logarithm = diode(source(t) - u, p)[2] | {"R": u / np.exp(p["R"])}
    return {name: np.sum(lam * by_logarithm[name]) / CAPACITY for name in p}


# ------------------------------------------------------------------ training
def main(picture: str = "out/host_simulator.png") -> int:
    host = hx.HostVJP(rhs, vjp_u=vjp_u, vjp_p=vjp_p, batched=True)
    pulse = hx.PeriodicCallback(lambda u, p, t: u - PULSE / CAPACITY, 0.01, save_positions=(False, False))
    prob = hx.ODEProblem(host, jnp.zeros(1), (0.0, 0.06), callback=pulse, rtol=1e-5, atol=1e-6)
    samples = np.linspace(0.0, 0.06, 61)

    truth = np.log(list(TRUTH.values()))
    guess = np.log([1e-4, 30.0, 400.0])
    noise = 0.01 * np.random.default_rng(0).normal(size=61)

    @jax.jit
    def voltage(x):
        return hx.solve(prob, p=dict(zip(TRUTH, x, strict=True)), saveat=samples).us[:, 0]

    data = np.asarray(voltage(truth)) + noise
    jacobian = jax.jit(jax.jacrev(voltage))
    start = time.perf_counter()
    fit = least_squares(lambda x: np.asarray(voltage(x)) - data, guess, lambda x: np.asarray(jacobian(x)))
    elapsed = time.perf_counter() - start
    rms = np.sqrt(np.mean(fit.fun**2))
    print(f"{fit.njev} Jacobians of 61 x 3 in {elapsed:.0f} s; residual {1e3 * rms:.1f} mV, noise 10 mV")
    # twice the standard deviation that the noise gives each logarithm
    spread = 2 * rms * np.sqrt(np.diag(np.linalg.inv(fit.jac.T @ fit.jac)))
    for name, x, first, width, unit in zip(TRUTH, fit.x, guess, spread, ("A", "ohm", "ohm"), strict=True):
        found = f"{np.exp(x):.4g} +- {100 * width:.2g} %"
        print(f"{name:4s} guess {np.exp(first):<8.4g} found {found:20s} truth {TRUTH[name]:g} {unit}")
    draw(picture, samples, data, prob, {"guess": guess, "found": fit.x})
    print(f"picture: {picture}")
    return 0 if np.all(np.abs(fit.x - truth) < 2 * spread) else 1


def draw(picture, samples, data, prob, parameters):
    figure, axes = pyplot().subplots(figsize=(8, 4.2), layout="constrained")
    fine = np.linspace(0.0, 0.06, 601)
    for (name, x), color in zip(parameters.items(), ("tab:gray", "tab:blue"), strict=True):
        sol = hx.solve(prob, p=dict(zip(TRUTH, jnp.asarray(x), strict=True)), saveat=fine)
        axes.plot(1e3 * fine, sol.us[:, 0], color=color, lw=2, label=name)
    axes.plot(1e3 * samples, data, "o", color="tab:red", ms=4, mfc="white", mew=1.3, label="measured")
    axes.set(xlabel="time (ms)", ylabel="capacitor voltage (V)", title="diodes in compiled code, a load that pulses")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    save(figure, picture)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
