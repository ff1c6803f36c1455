"""What holds for every test.

A process that only hands tests out to others reads this file too: it needs no torch.
"""

import os
import signal
import sys

import pytest
from hypothesis import HealthCheck, settings

# A shell's jobs in the background ignore Ctrl-C, and so would all processes that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples each time, however loaded the machine is: a change is judged by what it changes.
# `--hypothesis-profile=explore` looks for new ones.
settings.register_profile(
    "same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", settings.get_profile("same"), derandomize=False)
settings.load_profile("same")

# Keras decides once, whoever imports it first: packages look into those that are installed.
os.environ["KERAS_BACKEND"] = "numpy"


# They need fork, limits or signals, which Windows lacks, and so do modules that they import.
NEED_POSIX = (
    "embedding/test_faults.py",
    "embedding/test_hostile.py",
    "embedding/test_memory.py",
    "embedding/test_ray.py",
    "formats/test_damage.py",
    "hostile/test_containers.py",
    "hostile/test_documents.py",
    "hostile/test_faults.py",
    "hostile/test_images.py",
    "hostile/test_names.py",
    "hostile/test_orbax.py",
    "inference/test_workers.py",
    "orbax/test_orbax.py",
    "pictures/test_page.py",
    "sources/test_hub_formats.py",
    "test_site.py",
)
collect_ignore = [*NEED_POSIX] if sys.platform == "win32" else []

# The rarest first: what has two markers waits for the rarer.
LEFT_OUT = ("coverage", "slow")


def pytest_addoption(parser):
    parser.addoption(
        "--shard",
        type=_shard,
        default=(1, 1),
        metavar="I/N",
        help="of the tests under `-m coverage` or `-m slow`, every N-th from the I-th",
    )


def pytest_collection_modifyitems(config, items):
    """A marked test runs only where the mark expression names its marker."""
    for item in items:
        if sys.platform == "win32" and item.get_closest_marker("posix"):
            item.add_marker(pytest.mark.skip(reason="of what Windows lacks"))
    index, count = config.getoption("--shard")
    marked = [(item, name) for item in items if (name := _rarest_marker(item))]
    named = [item for item, name in marked if name in config.getoption("markexpr")]
    left_out = {item for item, _ in marked} - set(named[index - 1 :: count])
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def _rarest_marker(item):
    return next(filter(item.get_closest_marker, LEFT_OUT), None)


def _shard(text):
    try:
        index, count = (int(number) for number in text.split("/"))
    except ValueError:
        raise pytest.UsageError(f"--shard {text} is not of the form I/N") from None
    if not 1 <= index <= count:
        raise pytest.UsageError(f"--shard {text}: I counts from 1 to N")
    return index, count


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """The tensors are tiny, and other tests run beside."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def keras_in_numpy() -> None:
    """For tests that let Keras compute."""
    from tests import packages

    packages.keras_in_numpy()
