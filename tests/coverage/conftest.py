"""The whole of timm is for a run of its own: `-m coverage`, and `--shard` for a part of it."""

import pytest


def pytest_addoption(parser):
    parser.addoption(
        "--shard",
        type=_shard,
        default=(1, 1),
        metavar="I/N",
        help="of the architectures under `-m coverage`, every N-th from the I-th",
    )


def pytest_collection_modifyitems(config, items):
    marked = [item for item in items if item.get_closest_marker("coverage")]
    wanted = "coverage" in config.getoption("markexpr")
    # Without tests/coverage among the arguments, this file is read too late for its option.
    index, count = config.getoption("--shard", (1, 1))
    kept = marked[index - 1 :: count] if wanted else []
    left_out = {id(item) for item in marked} - {id(item) for item in kept}
    config.hook.pytest_deselected(items=[item for item in items if id(item) in left_out])
    items[:] = [item for item in items if id(item) not in left_out]


def _shard(text):
    try:
        index, count = (int(number) for number in text.split("/"))
    except ValueError:
        raise pytest.UsageError(f"--shard {text} is not of the form I/N") from None
    if not 1 <= index <= count:
        raise pytest.UsageError(f"--shard {text}: I counts from 1 to N")
    return index, count
