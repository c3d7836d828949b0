"""Every test runs in float64, without silent promotion of dtypes or ranks.

Set HYBRIDAX_TEST_EXAMPLES to draw more random problems than the default.
"""

import os

os.environ.setdefault("JAX_ENABLE_X64", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest
from hypothesis import HealthCheck, settings

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=int(os.environ.get("HYBRIDAX_TEST_EXAMPLES", "30")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("repeatable")


def pytest_configure(config):
    # one right-hand side serves many structures here, which in a program of one's own would deserve the warning
    config.addinivalue_line("filterwarnings", "ignore:solve has compiled the right-hand side")


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_programs():
    """Compiled programs are kept within a file and dropped after it, so that a whole run stays small."""
    yield
    from problems.evaluate import forget

    forget()
    jax.clear_caches()
