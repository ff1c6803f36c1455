"""What happened to a checkpoint: used, ignored (why), assumed (from where), changed (how)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """The accounts of one checkpoint. `read` is always `used` plus `ignored`."""

    dialect: str
    read: int  # tensors in the file
    used: tuple[str, ...]  # their names, each of which went into the model
    ignored: Mapping[str, str] = field(default_factory=dict)  # name -> reason
    assumed: Mapping[str, str] = field(default_factory=dict)  # field -> "value (from where)"
    notes: tuple[str, ...] = ()  # where a config file and the tensors differ, and the like
    changed: tuple[str, ...] = ()  # changes that were asked for, in order

    def __str__(self) -> str:
        return (
            f"Ledger(dialect={self.dialect!r}, read={self.read}, used={len(self.used)}, "
            f"ignored={len(self.ignored)})"
        )

    __repr__ = __str__

    def with_changes(self, changes: Iterable[str]) -> "Ledger":
        """The ledger after further changes."""
        return replace(self, changed=(*self.changed, *changes))

    def to_dict(self) -> dict[str, Any]:
        """For `vitconvert.json` and `--json`."""
        return {
            "dialect": self.dialect,
            "read": self.read,
            "used": len(self.used),
            "ignored": dict(self.ignored),
            "assumed": dict(self.assumed),
            "notes": list(self.notes),
            "changed": list(self.changed),
        }
