"""torch's own exported programs, which torch runs without the code of the model."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.runtimes.runtime import Run, Runtime

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram

_EXTRA = "/extra/"  # of the archive: where torch keeps the files of others


class Pt2(Runtime):
    """`torch.export.save` and `torch.export.load`."""

    name, suffix = "torch.export", ".pt2"

    def write(
        self,
        program: "ExportedProgram",
        path: Path,
        *,
        metadata: Mapping[str, str],
        opset: int | None = None,
    ) -> None:
        """As `Runtime.write`; the metadata become extra files of the archive."""
        import torch

        torch.export.save(program, path, extra_files=dict(metadata))

    def open(self, path: Path, *, threads: int, streams: int = 1) -> Run:
        """As `Runtime.open`, in torch's own threads."""
        import torch

        module = torch.export.load(path).module()

        def run(images: "Tensor") -> "Tensor":
            with torch.no_grad():
                output: Tensor = module(images)
            return output

        return run

    def metadata(self, path: Path) -> Mapping[str, str]:
        """The extra files."""
        with zipfile.ZipFile(path) as archive:
            names = (name for name in archive.namelist() if _EXTRA in name)
            return {name.rpartition(_EXTRA)[2]: archive.read(name).decode() for name in names}
