"""Adds the compiled tables to a wheel: a build hook of hatchling (1.27, `hooks.custom`)."""

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileTables(BuildHookInterface):
    """Compiles `weights_map/`; where the checkout is what is installed, it does so itself."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the file, and say where it lies in the wheel."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)  # the package that is built, not one that is installed
        from vitconvert.toml_files import COMPILED, compile_tables

        self._folder = tempfile.TemporaryDirectory()
        file = Path(self._folder.name) / COMPILED
        file.write_text(
            compile_tables(Path(self.root) / "weights_map"), encoding="utf-8", newline="\n"
        )
        build_data["force_include"][str(file)] = f"vitconvert/weights_map/{COMPILED}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the file."""
        if version != "editable":
            self._folder.cleanup()
