"""Addresses of this repository in what PyPI shows: a metadata hook of hatchling (1.27).

GitHub names the repository in the environment of its workflows, so a fork's release has the fork's
addresses. A package that is built elsewhere has none, and its README keeps relative links.
"""

import os
import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Addresses(MetadataHookInterface):
    """Sets `urls`, and makes the links of README absolute."""

    def update(self, metadata: dict[str, object]) -> None:
        """Change what pyproject.toml says."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        repository = os.environ.get("GITHUB_REPOSITORY")
        if repository:
            server = os.environ.get("GITHUB_SERVER_URL", "https://github.com")
            ref = os.environ.get("GITHUB_REF_NAME", "HEAD")
            metadata["urls"] = urls(f"{server}/{repository}")
            text = with_absolute_links(text, f"{server}/{repository}", ref)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def urls(repository: str) -> dict[str, str]:
    """The links beside a package on PyPI."""
    owner, name = repository.split("/")[-2:]
    return {
        "Documentation": f"https://{owner}.github.io/{name}/",  # .github/workflows/docs.yml
        "Repository": repository,
        "Issues": f"{repository}/issues",
        "Changelog": f"{repository}/blob/main/docs/changelog.md",
        "Security": f"{repository}/security",
    }


def with_absolute_links(text: str, repository: str, ref: str) -> str:
    """Markdown whose relative links lead into a repository, and whose images are its files."""
    text = re.sub(r"(!\[[^\]]*\]\(|src=\")(?![a-z]+:)", rf"\1{repository}/raw/{ref}/", text)
    return re.sub(r"(\]\(|href=\")(?![a-z]+:|#)", rf"\1{repository}/blob/{ref}/", text)
