"""Parity in tests: `assert_parity(model, against)`, and a plugin for pytest.

Recipes for CI are in `README.md` beside this file. Importing this imports next to nothing.
"""

from collections.abc import Callable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitconvert.api.loading import Source
    from vitconvert.parity.report import ParityReport
    from vitconvert.testing.assertion import Tolerance

__all__ = ["assert_parity"]


def assert_parity(
    model: "Source | Callable[..., Any]",
    against: "Source | Callable[..., Any] | None" = None,
    *,
    tolerance: "Tolerance" = 2e-5,
    layers: Mapping[str, str] | None = None,
    table: str | PathLike[str] | None = None,
    **options: Any,
) -> "ParityReport":
    """Fail unless a model computes the same as another, and say which layer departs first and why.

    Args:
        model: A module, a function of images, or a checkpoint: `source` of `vitconvert.compare`.
        against: A golden file, a checkpoint, a module or a function; for a checkpoint, by default
            the implementation of its own project.
        tolerance: The largest relative difference in float32, of which float64 has a ten-millionth;
            or one for each dtype that is to be compared, such as `{"float32": 1e-4}`.
        layers: Name of a module of `model` -> name of a module of what it is compared with.
        table: A TOML file that names the tensors of `model`.
        options: Further arguments of what compares: `vitconvert.check_golden` with a golden file,
            `vitconvert.compare` with a module or a function, `vitconvert.verify` of checkpoints.

    Raises:
        AssertionError: They differ, or nothing could be compared. The message has the differences
            of all layers.
        VitConvertError: One of the errors of these functions: no comparison could begin.

    Example:
        >>> assert_parity(build_vit(), "vit_tiny.golden", table="team.toml")  # doctest: +SKIP
    """
    from vitconvert.testing.assertion import compared, failure

    report = compared(model, against, tolerance=tolerance, layers=layers, table=table, **options)
    if not report.ok:
        raise AssertionError(failure(report))
    return report
