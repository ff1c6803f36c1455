"""The Hub client's progress bars."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def progress(*, quiet: bool) -> Iterator[None]:
    """Show no bars of the Hub's client within the block, if `quiet`; others' choices stay."""
    from huggingface_hub import constants
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    # The environment variable, where it is set, has the last word in the client.
    free = constants.HF_HUB_DISABLE_PROGRESS_BARS is None
    hide = quiet and free and not are_progress_bars_disabled()
    if hide:
        disable_progress_bars()
    try:
        yield
    finally:
        if hide:
            enable_progress_bars()
