"""What holds for every test.

A process that only hands tests out to others reads this file too: it needs no torch.
"""

import os
import signal

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
