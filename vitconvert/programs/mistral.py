"""Mistral's own code, read and not run: its params.json has a section on the vision encoder."""

from vitconvert.facts.project_config import written_config
from vitconvert.programs.program import DescribedModel, Program
from vitconvert.programs.target import Target, fit_target
from vitconvert.tables.table import Table


class Mistral(Program):
    """The code of mistral-inference, which calls xformers."""

    def fit(self, table: Table, model: DescribedModel) -> Target:
        """With a `params.json` of the vision encoder alone."""
        return fit_target(table, model.config, written_config(table, model.config))


PROGRAM = Mistral()
