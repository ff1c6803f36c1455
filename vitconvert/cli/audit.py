"""`vitconvert audit CHECKPOINT --by LOADER`."""

from dataclasses import dataclass
from pathlib import Path

from vitconvert.cli.options import Fetching, argument, flag

INCOMPLETE = 3  # as `verify`


@dataclass(kw_only=True)
class Audit(Fetching):
    """Loads a checkpoint as LOADER does, and looks for its tensors in what was loaded."""

    details = (
        " The model may be any. LOADER runs: transformers (the class that config.json names),"
        " transformers:CLASS, timm (a directory), timm:NAME (a file), open_clip:NAME,"
        " torchvision:NAME, diffusers:CLASS, sentence_transformers, or your own code,"
        " package.module:function or file.py:function, which is called with the path."
        " Exit code 0: every parameter holds the file's numbers; 3: not;"
        " 2: there is no such loader or interpreter; 1: the loader raised, or a file is bad."
    )

    checkpoint: str = argument()
    by: str | None = flag("What loads it; always needed.", metavar="LOADER")
    python: Path | None = flag("Load with this interpreter, which need not have vitconvert.")
    allow: tuple[str, ...] = flag(
        "Parameters that may be new, as 'classifier.*'. May be repeated.",
        metavar="PATTERN",
        default=(),
    )

    def run(self) -> int:
        from vitconvert.api import audit_load
        from vitconvert.auditing.loaders import no_loader_named
        from vitconvert.auditing.report import counts, report_lines
        from vitconvert.cli.report import Verdict
        from vitconvert.sources import locate

        located = locate(self.checkpoint, **self.fetching())
        if self.by is None:
            raise no_loader_named(located)
        audit = audit_load(self.by, located, python=self.python, allow=self.allow)
        first, verdict, *rest = report_lines(audit, verbose=self.verbose)
        self.report(
            audit.to_dict,
            short=counts(audit),
            long=lambda: [first, Verdict(verdict, ok=audit.complete), *rest],
            ok=audit.complete,
        )
        return 0 if audit.complete else INCOMPLETE
