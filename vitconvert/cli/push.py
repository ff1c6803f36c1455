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


def _file(name: str, size: int) -> str:
    return f"{size:,} bytes  {name}"
