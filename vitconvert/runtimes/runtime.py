"""What each runtime does: write a file, run it, and read its metadata; and torch's own runtime."""

import importlib.util
import io
import zipfile
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from vitconvert.errors import MissingPackage

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram as Program


Run = Callable[["Tensor"], "Tensor"]  # images to the output of a graph
Metadata = Mapping[str, str]  # what a file says of itself


class Runtime:
    """A file format, and the program that computes what is in it.

    Attributes:
        name: Of the program, for people.
        suffix: Of the file's name.
        packages: Of Python, that writing and running needs.
        stops_at_shapes: Whether it raises an error where sizes do not fit.
        fewest_patches: Down or across, of an image of free size.
        dtypes: In which it can compute a file of float32.
        calibrated_by: Packages that quantising by images needs too; None: it has no int8 so.
    """

    name: ClassVar[str]
    suffix: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()
    calibrated_by: ClassVar[tuple[str, ...] | None] = None
    stops_at_shapes: ClassVar[bool] = True
    fewest_patches: ClassVar[int] = 1
    dtypes: ClassVar[tuple[str, ...]] = ("float32",)

    def write(
        self, program: "Program", path: Path, metadata: Metadata, opset: int | None = None
    ) -> None:
        """Write a traced model, perhaps with files beside it whose names begin as this one's."""
        raise NotImplementedError

    def calibrate(
        self, path: Path, output: Path, images: "Iterable[Tensor]", *, head: bool
    ) -> None:
        """Write a file in float32 as one in int8, by the activations that images make.

        The patch embedding stays in float32, and so does a `head`, the last product: rounding them
        costs more than it gains.
        """
        raise NotImplementedError

    def open(self, path: Path, *, threads: int, streams: int = 1, dtype: str = "float32") -> Run:
        """What is written there, ready to compute on the CPU.

        Args:
            path: The file.
            threads: Of all computations together.
            streams: How many threads call it at once; each computes with its share of `threads`.
            dtype: One of its `dtypes`; images and output are float32.
        """
        raise NotImplementedError

    def metadata(self, path: Path) -> Metadata:
        """What the file says of itself; whatever is raised means that it is no such file."""
        raise NotImplementedError

    def companions(self, path: Path) -> tuple[Path, ...]:
        """Files that may be written beside this one."""
        return ()

    def check_opset(self, opset: int) -> None:
        """Refuse a version of operators that cannot be written, before any work is done.

        Raises:
            UsageError: There is no such version.
        """

    def remaining(self, path: Path) -> tuple[str, ...]:
        """What engines may get wrong, or compute for each batch, of a graph that was written."""
        return ()

    @property
    def version(self) -> str:
        """Name and version of the program that runs it."""
        package = self.packages[0] if self.packages else "torch"
        try:
            return f"{self.name} {version(package)}"
        except PackageNotFoundError:
            return self.name

    def missing(self, *more: str) -> list[str]:
        """Packages that are not installed, of its own and of others."""
        needed = (*self.packages, *more)
        return [name for name in needed if importlib.util.find_spec(name) is None]

    def require(self, *, calibrating: bool = False) -> None:
        """Refuse to go on without the packages.

        Raises:
            MissingPackage: Some are not installed.
        """
        if missing := self.missing(*(self.calibrated_by or () if calibrating else ())):
            what = f"{self.name}, calibrated," if calibrating else self.name
            raise MissingPackage(
                f"{what} needs packages that are not installed.",
                evidence={"missing": ", ".join(missing)},
                hint=f"pip install {' '.join(missing)}",
            )


_EXTRA = "/extra/"  # of the archive: where torch keeps the files of others


class Pt2(Runtime):
    """`torch.export.save` and `torch.export.load`."""

    name, suffix = "torch.export", ".pt2"
    fewest_patches = 2  # `Graph.open_sizes` says why

    def write(
        self, program: "Program", path: Path, metadata: Metadata, opset: int | None = None
    ) -> None:
        """As `Runtime.write`; the metadata become extra files of the archive."""
        import torch

        # Of a path, the archive would repeat the name; of an open file, torch's writer ends the
        # process where the disk is full (torch 2.15: its destructor raises).
        archive = io.BytesIO()
        torch.export.save(program, archive, extra_files=dict(metadata))
        path.write_bytes(archive.getbuffer())

    def open(self, path: Path, *, threads: int, streams: int = 1, dtype: str = "float32") -> Run:
        """As `Runtime.open`, in torch's own threads."""
        import torch

        module = torch.export.load(path).module()

        def run(images: "Tensor") -> "Tensor":
            with torch.no_grad():
                output: Tensor = module(images)
            return output

        return run

    def metadata(self, path: Path) -> Metadata:
        """The extra files."""
        with zipfile.ZipFile(path) as archive:
            names = (name for name in archive.namelist() if _EXTRA in name)
            return {name.rpartition(_EXTRA)[2]: archive.read(name).decode() for name in names}
