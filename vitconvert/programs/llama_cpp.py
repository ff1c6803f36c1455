"""llama.cpp: C++ that reads an encoder, a projector and their metadata from one GGUF file."""

from collections.abc import Iterable

from vitconvert.facts.project_config import put, written_config
from vitconvert.preprocessing import Preprocessing
from vitconvert.programs.program import UNKNOWN, CompanionFiles, DescribedModel, Program
from vitconvert.programs.target import Target, check_place, fit_target
from vitconvert.tables.table import Table


class LlamaCpp(Program):
    """llama.cpp, of which no package of Python runs encoders."""

    packages = ("llama.cpp",)

    def fit(self, table: Table, model: DescribedModel) -> Target:
        """With what the file's metadata say."""
        check_place(table, model.config)
        return fit_target(table, model.config, written_config(table, model.config))

    def companions(
        self, target: Target, preprocessing: Preprocessing | None, dtypes: Iterable[str]
    ) -> CompanionFiles:
        """Nothing beside the weights: all is said in their file."""
        within = dict(target.their_config)
        projector = "llama.cpp opens it only with a projector, which a ViT does not have"
        if preprocessing is None:
            return CompanionFiles(files={}, within=within, departures=(projector, UNKNOWN))
        for name, values in (("mean", preprocessing.mean), ("std", preprocessing.std)):
            put(within, f"clip.vision.image_{name}", list(values))
        return CompanionFiles(files={}, within=within, departures=(projector,))


PROGRAM = LlamaCpp()
