"""vitconvert itself: its `vitconvert.json` says whatever the tensors cannot tell."""

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import field_names
from vitconvert.errors import NotRepresentable
from vitconvert.facts.fact import state
from vitconvert.programs.example import Example
from vitconvert.programs.program import DescribedModel, Program
from vitconvert.programs.reference import Reference
from vitconvert.programs.target import Target, fit_target
from vitconvert.tables.table import Table


class VitConvert(Program):
    """Reads what it wrote; the card shows its use for every target."""

    packages = ("vitconvert",)

    def fit(self, table: Table, model: DescribedModel) -> Target:
        """Every field of the configuration is stated."""
        own = {name: getattr(model.config, name) for name in field_names()}
        stated = {name: value for name, value in own.items() if value is not None}
        return fit_target(table, model.config, named=state(stated, "vitconvert.json"))

    def reference(self, checkpoint: Checkpoint) -> Reference:
        """There is none but itself."""
        raise NotRepresentable("these are vitconvert's own names, which no other library has.")

    def examples(self, target: Target, source: Checkpoint, has_processor: bool) -> list[Example]:
        """None besides the one that every card has."""
        return []


PROGRAM = VitConvert()
