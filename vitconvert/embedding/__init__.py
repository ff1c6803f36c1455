"""Features and classes of any number of images, in Parquet files that appear whole or not at all.

The images are frozen into a plan: an ordered list of units. Whoever computes a unit writes one
file, a shard, and that file is the commit: nothing else coordinates. So a run that was killed goes
on where it was, and several processes or machines can share one.
"""

from importlib.util import find_spec

from vitconvert.errors import MissingPackage


def require_package(package: str) -> None:
    """Make sure that an optional package is there, without importing it.

    Raises:
        MissingPackage: It is not.
    """
    if find_spec(package) is None:
        raise MissingPackage(f"{package} is not installed.", hint=f"pip install {package}")
