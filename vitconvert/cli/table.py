"""`vitconvert table FILE --like REFERENCE -o NAME.toml`, or `--module CODE:build`."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconvert.cli.options import Fetching, argument, flag, output_flag, settings
from vitconvert.cli.report import SHOWN, line, named_after, one_line_for_all_blocks, some_lines
from vitconvert.errors import UsageError

if TYPE_CHECKING:
    from vitconvert.drafting.draft import Draft


@dataclass(kw_only=True)
class DraftTable(Fetching):
    """Drafts a table."""

    details = (
        " Rows that are certain can be used at once; guesses are commented out, with the reason."
    )

    source: str | None = argument("[FILE]", required=False)
    like: str | None = flag(
        "A ViT of the same sizes: a name of timm, or a checkpoint. One with the same weights "
        "is best.",
        metavar="ARCHITECTURE_OR_FILE",
    )
    module: str | None = flag(
        "Your own model with these names, such as team.models:build_vit, in place of "
        "--like; your code is run, with random weights. Without FILE, the names are the model's.",
        metavar="MODULE:NAME",
    )
    output: Path | None = output_flag("The table to write; default: NAME.toml.")
    facts: tuple[str, ...] = flag(
        "Set a fact that --like or --module does not show, such as num_heads=3. May be repeated.",
        "--set",
        default=(),
        metavar="FIELD=VALUE",
    )
    prefer: str | None = flag("Which state dict of a torch checkpoint to read.", metavar="KEY")
    tower: str | None = flag(
        "In a larger model, what the names of the ViT's tensors begin with.", metavar="PREFIX"
    )
    rescue: bool = flag(
        "Read the tensors of a whole model that torch.save wrote as data; runs no code.",
        default=False,
    )
    ignore: tuple[str, ...] = flag(
        "Leave tensors out, such as 'text.*'. May be repeated.", default=(), metavar="PATTERN"
    )
    force: bool = flag("Replace an earlier draft.", default=False)
    verbose: bool = flag("List every row and every tensor left.", "-v", default=False)

    def run(self) -> int:
        from vitconvert.api import draft_table
        from vitconvert.drafting.draft import check_no_dialect, is_architecture
        from vitconvert.drafting.draft_text import check_draft_output
        from vitconvert.sources import locate
        from vitconvert.tables.dialects import builtin_tables, tables_of

        if not (self.like or self.module):
            raise UsageError(
                "A ViT of the same sizes is needed, and none is named.",
                hint="--like names a ViT of the same sizes, --module the code that builds yours.",
            )
        named = self.source or str(self.module).partition(":")[0].rpartition(".")[2]
        name = named_after(named)
        # Of vit.pth, vit.toml would be what --to vit means, and no longer how the source is named.
        if name in builtin_tables() or tables_of(name):
            name += "-draft"
        output = self.output or Path(f"{name}.toml")
        check_draft_output(output, overwrite=self.force)  # before anything is downloaded
        fetching = self.fetching()
        like: Any = self.like
        if like and not is_architecture(like):
            check_no_dialect(like)
            like = locate(like, **fetching | {"revision": None})
        draft = draft_table(
            locate(self.source, **fetching) if self.source else None,
            like=like,
            module=self._module(),
            output=output,
            overrides=settings(self.facts),
            prefer=self.prefer,
            tower=self.tower,
            ignore=self.ignore,
            rescue=self.rescue,
            overwrite=self.force,
        )
        self.report(
            lambda: {"output": str(output), **draft.to_dict()},
            short=output,
            long=lambda: self._report(draft, output),
            ok=draft.problem is None,
        )
        return 0

    def _module(self) -> Any:
        """What the user's code builds, or None."""
        if not self.module:
            return None
        from vitconvert.parity.own_models import build_own_model

        return build_own_model(self.module)

    def _report(self, draft: "Draft", output: Path) -> Iterator[str]:
        rows = [f"{row.name} = {row.spelling}: {row.reason}" for row in draft.certain]
        guesses = [f"{row.name} = {row.spelling}: {row.reason}" for row in draft.guesses]
        left = some_lines(one_line_for_all_blocks(draft.left), None if self.verbose else SHOWN)
        yield line("source", draft.source)
        yield line("like", draft.like)
        yield line("values", draft.values)
        if draft.computed:
            yield line("module", draft.computed)
        yield line("certain", f"{len(rows)} rows", *(rows if self.verbose else []))
        yield line("guesses", f"{len(guesses)} rows, commented out", *guesses)
        if draft.ignored:
            yield line("ignored", f"{len(draft.ignored)} tensors")
        yield line("left", f"{len(draft.left)} tensors", *left)
        yield line("not found", *draft.unfilled)
        yield line("as in like", *(f"{name} = {value}" for name, value in draft.config.items()))
        yield line("output", output)
        tower = f" --tower {self.tower}" if self.tower else ""
        if draft.problem is None and self.source is None:
            to = f"vitconvert convert MODEL --to {output.stem} --table {output} -o OUTPUT"
            yield line("next", to, *self._verify_next("OUTPUT", output))
        elif draft.problem is None:
            use = f"vitconvert convert {self.source} --table {output}{tower} -o OUTPUT"
            yield line("next", *self._verify_next(self.source, output), use)
        elif guesses:
            yield line(
                "next",
                f"take the # away from those of the {len(guesses)} guesses in {output} that "
                "are right, then",
                f"vitconvert inspect {self.source or 'FILE'} --table {output}{tower}",
            )
        else:
            why = f"the table does not read the file yet: {draft.problem.fact}"
            yield line("next", why, *draft.problem.details)

    def _verify_next(self, source: object, output: Path) -> Iterator[str]:
        """The command that compares the user's own model with a file by the drafted table."""
        if self.module:
            tower = f" --tower {self.tower}" if self.tower else ""
            yield f"vitconvert verify {source} --module {self.module} --table {output}{tower}"
