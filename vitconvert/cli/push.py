"""`vitconvert push DIR REPO`."""

from dataclasses import dataclass
from pathlib import Path

from vitconvert.cli.options import Reporting, argument, flag
from vitconvert.cli.report import line


@dataclass(kw_only=True)
class Push(Reporting):
    """Publishes an output."""

    directory: Path = argument()
    repo: str = argument()
    private: bool = flag("If the repository is created, make it private.", default=False)
    create_pr: bool = flag("Open a pull request instead of committing.", default=False)
    revision: str | None = flag("Branch to commit to; created if it does not exist.")
    message: str | None = flag("The commit message.", "-m")
    token: str | None = flag("A token that may write; default: `hf auth login`.")
    dry_run: bool = flag("Check and list the files, and send nothing.", default=False)
    force: bool = flag("Publish random weights too.", default=False)

    def run(self) -> int:
        from vitconvert.conversion.push import files_to_push, push, sizes

        self._check_statement()
        if self.dry_run:
            files = sizes(files_to_push(self.directory, force=self.force))
            self.report(
                lambda: {"repo": self.repo, "dry_run": True, "files": files},
                short="\n".join(files),
                long=lambda: [line("would send", _file(*one)) for one in files.items()],
            )
            return 0
        pushed = push(
            self.directory,
            self.repo,
            private=self.private,
            create_pr=self.create_pr,
            revision=self.revision,
            message=self.message,
            token=self.token,
            quiet=self.quiet or self.as_json,
            force=self.force,
        )
        self.report(
            pushed.to_dict,
            short=pushed.url,
            long=lambda: [
                *(line("file", _file(*one)) for one in pushed.files.items()),
                line("pull request" if pushed.pull_request else "commit", pushed.url),
                line("load it with", f"hf-hub:{pushed.repo}"),
            ],
        )
        return 0

    def _check_statement(self) -> None:
        """Refuse to publish a statement on other files; but the card is anybody's to edit."""
        from vitconvert.attesting.check import check_files
        from vitconvert.attesting.statement import place_of, read_statement
        from vitconvert.errors import UploadError

        if not (place := place_of(self.directory)).is_file():
            return
        found = check_files(self.directory, read_statement(place), editable="README.md")
        if wrong := [one.text for one in found if not one.ok]:
            raise UploadError(
                f"{place.name} is a statement on other files than these.",
                evidence={"statement": place},
                details=wrong,
                hint="convert again with --force and --attest, or move it elsewhere.",
            )


def _file(name: str, size: int) -> str:
    return f"{size:,} bytes  {name}"
