"""Every test runs in float64, without silent promotion of dtypes or ranks.

Programs here run for milliseconds and are many, so that XLA is asked to compile them quickly rather than well.
Set HYBRIDAX_TEST_EXAMPLES to draw more random problems than the default, and HYBRIDAX_TEST_FULL=1 to run every cell of the
matrices that are spread (test_backend_matrix).

With several workers a file belongs to one of them, as its tests share compiled programs; the longest files start first.
"""

import gc
import os

import jax
import pytest
from hypothesis import HealthCheck, settings

# read when the first backend starts, which is after this
QUICK = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)
os.environ["XLA_FLAGS"] = f"{QUICK} {os.environ.get('XLA_FLAGS', '')}"

jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS", "cpu"))
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


#: files of more than half a minute, longest first
LONG = (
    "test_known_event_cases",
    "test_smooth_cases",
    "test_event_cases",
    "test_oracles",
    "test_methods_agree",
    "test_backend_matrix",
    "test_cases_by_backend",
    "test_random_problems",
    "test_training_cases",
    "test_examples",
    "test_structures",
    "test_times",
    "test_forward_and_direct",
    "test_failures",
)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


def pytest_collection_finish(session):
    # tracing makes objects by the million and hardly a cycle: the collector would take a tenth of the time
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadFileScheduling

    if config.getvalue("dist") != "load":  # the user's own choice
        return None
    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)


def pytest_configure(config):
    # one right-hand side serves many structures here, which in a program of one's own would deserve the warning
    config.addinivalue_line("filterwarnings", "ignore:solve has compiled the right-hand side")


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_programs():
    """Compiled programs are kept within a file and dropped after it, so that a whole run stays small."""
    yield
    jax.clear_caches()
