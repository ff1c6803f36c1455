"""The plugin that pytest loads: fixtures, a marker, an option for pages, properties for JUnit.

pytest loads this in every run where vitconvert is installed, so it imports nothing that takes time.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torch import nn

    from vitconvert.auditing.audit import LoadAudit
    from vitconvert.auditing.tensors import File
    from vitconvert.parity.report import ParityReport

MARKER = (
    "parity(against=[...], **options): run the test for each of `against`, which is golden files, "
    "patterns of them (from the test's directory) or references; options are assert_parity's."
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--vitconvert-report DIR`."""
    parser.getgroup("vitconvert").addoption(
        "--vitconvert-report",
        metavar="DIR",
        help="Write an HTML page for each comparison of the fixture assert_parity.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Say that the marker exists."""
    config.addinivalue_line("markers", MARKER)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a marked test for each of its `against`."""
    marker = metafunc.definition.get_closest_marker("parity")
    if marker is None or "against" not in marker.kwargs:
        return
    test = metafunc.definition.nodeid
    if "against" not in metafunc.fixturenames:
        pytest.fail(f"{test} is marked parity(against=...), and takes no `against`.", pytrace=False)
    stated = marker.kwargs["against"]
    stated = [stated] if isinstance(stated, str | Path) else list(stated)
    found = [one for text in stated for one in _found(text, metafunc.definition.path.parent)]
    if not found:
        pytest.fail(f"{test} is marked parity(against=[]): it would test nothing.", pytrace=False)
    metafunc.parametrize("against", found, ids=[Path(str(one)).name for one in found])


def _found(against: Any, directory: Path) -> Iterator[Any]:
    """A golden file beside a test, all that match a pattern, or a reference as it is."""
    if not str(against).endswith(".golden"):
        yield against
        return
    place, name = Path(str(against)), str(against)
    if place.is_absolute():
        directory, name = place.parent, place.name
    files = sorted(directory.glob(name))
    if not files:
        pytest.fail(f"There is no golden file {against} in {directory}.", pytrace=False)
    yield from files


@pytest.fixture
def assert_parity(request: pytest.FixtureRequest) -> Callable[..., "ParityReport"]:
    """`vitconvert.testing.assert_parity`, which also records JUnit properties and writes a page."""
    marker = request.node.get_closest_marker("parity")
    stated = dict(marker.kwargs) if marker else {}
    stated.pop("against", None)
    pages: list[Path] = []

    def check(model: Any, against: Any = None, **options: Any) -> "ParityReport":
        from vitconvert.atomic_write import atomic_file
        from vitconvert.testing.assertion import compared, failure

        __tracebackhide__ = True
        report = compared(model, against, **{"tolerance": 2e-5, **stated, **options})
        # Not by the fixture record_property, which warns of each strict reader of JUnit XML.
        request.node.user_properties.extend(_properties(report))
        if folder := request.config.getoption("--vitconvert-report"):
            pages.append(_page(Path(folder), request.node.nodeid, len(pages)))
            pages[-1].parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(pages[-1]) as file:
                file.write(report.to_html().encode())
        if not report.ok:
            raise AssertionError(failure(report))
        return report

    return check


@pytest.fixture
def assert_loaded() -> Iterator[Callable[..., "LoadAudit"]]:
    """`vitconvert.audit_load`, which fails unless each parameter holds the file's numbers.

    Around code that loads, or with a model that is loaded already.
    """
    audits: list[LoadAudit] = []

    def check(model: "nn.Module | Callable[[], nn.Module]", file: "File") -> "LoadAudit":
        from vitconvert.auditing.audit import audit

        __tracebackhide__ = True
        audits.append(audit(model, file, strict=True))
        return audits[-1]

    yield check
    for one in audits:
        if not one.is_finished:  # no block of a `with` was there to end
            one.look()


def _properties(report: "ParityReport") -> Iterator[tuple[str, object]]:
    """The properties of a comparison in JUnit XML."""
    yield "vitconvert.against", report.reference
    yield "vitconvert.verdict", report.verdict
    for dtype in dict.fromkeys(c.dtype for c in report.comparisons):
        worst = max(c.relative for c in report.comparisons if c.dtype == dtype)
        yield f"vitconvert.worst_relative_difference.{dtype}", f"{worst:.1e}"
    if report.first_divergence:
        yield "vitconvert.first_departs", report.first_divergence.layer
        yield "vitconvert.likely_cause", report.first_divergence.cause


def _page(folder: Path, test: str, number: int) -> Path:
    """A file for the page of a test, of its own whatever the test is called."""
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", test.rpartition("/")[2])[:100]
    digest = hashlib.sha256(f"{test} {number}".encode()).hexdigest()[:8]
    return folder / f"{readable}-{digest}.html"
