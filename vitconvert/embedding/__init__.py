"""Features and classes of any number of images, in Parquet files that appear whole or not at all.

Images come one after the other from their sources; answers are written as shards. A run skips the
keys that finished shards hold: nothing else coordinates. So a run that was killed goes on where it
was, in this process or on workers of Ray.
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
