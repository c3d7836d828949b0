"""``python -m hybridax``: the versions and devices in use, for a bug report."""

from __future__ import annotations

import platform
from importlib.metadata import version

import jax

PACKAGES = ("hybridax", "jax", "jaxlib", "numpy", "scipy", "equinox", "optax", "jaxtyping", "tqdm")


def report() -> str:
    """One line for each version, the precision and the devices."""
    lines = {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}
    lines["float64"] = "on" if jax.config.read("jax_enable_x64") else "off (jax_enable_x64)"
    lines["devices"] = ", ".join(f"{d.platform}:{d.id} {d.device_kind}" for d in jax.devices())
    return "\n".join(f"{name:10s} {value}" for name, value in lines.items())


if __name__ == "__main__":
    print(report())
