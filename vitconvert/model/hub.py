"""The Hub's convention: a model that saves, loads and publishes itself.

Names and arguments are those of huggingface_hub 2.4 (`PyTorchModelHubMixin`). Its class is not
used, as its files are its own: these are what `vitconvert convert` writes, which timm and
transformers load too. What does the work stands above a model, and is imported when it is called.
"""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from vitconvert.errors import UsageError

if TYPE_CHECKING:
    from vitconvert.api import Conversion, Preprocessing, Pushed
    from vitconvert.model.vit import ViT


class HubMethods:
    """`save_pretrained`, `push_to_hub` and `from_pretrained` of a ViT."""

    def save_pretrained(
        self,
        save_directory: str | PathLike[str],
        *,
        to: str = "vit",
        allow: Sequence[str] = (),
        labels: str | PathLike[str] | Sequence[str] | None = None,
        preprocessing: "Preprocessing | str | PathLike[str] | None" = None,
        max_shard_size: int | str | None = None,
        verify: bool = True,
        overwrite: bool = False,
        push_to_hub: bool = False,
        repo_id: str | None = None,
        private: bool = False,
        revision: str | None = None,
        commit_message: str | None = None,
        create_pr: bool = False,
        token: str | None = None,
    ) -> "Conversion":
        """Write what `vitconvert convert --to vit` writes, of the model as it is now.

        Weights keep their dtype. Preprocessing and names of classes are those of the checkpoint
        that the model was loaded from; the names of a head that was replaced are gone. So is a free
        image size, which `from_pretrained(..., dynamic_size=True)` gives again.

        Args:
            save_directory: The directory to write. It appears complete or not at all.
            to, allow: As for `vitconvert.convert`.
            labels: Names of the classes, or a file of them, as for `vitconvert.load_checkpoint`.
            preprocessing: Of images; or a preprocessor_config.json, or timm's config.json.
            max_shard_size: Split the weights into files of at most this size, such as "5GB".
            verify: Compare the model with what would be saved, and what was written with the
                programs that it is for.
            overwrite: Replace an earlier output. What vitconvert did not write is never replaced.
            push_to_hub: Publish the directory too.
            repo_id: Where; by default, a repository of the directory's name.
            private, revision, commit_message, create_pr, token: As for the method `push_to_hub`.

        Returns:
            What was written and compared.

        Warns:
            VitConvertWarning: The library of the layout prepares some images differently, or a free
                image size is not saved.

        Raises:
            UsageError: Layers were pruned, wrapped, quantised or replaced: the configuration does
                not say what the model computes.
            ConflictingFact: There are more or fewer `labels` than classes.
            OutputExists: The directory is there, and `overwrite` is false, or holds other files.
            ParityFailed: A program computes something else; nothing is written.
            UploadError: The Hub does not take it.

        Example:
            >>> model = vitconvert.ViT.from_pretrained("my-vit")
            >>> model.save_pretrained("tuned").output.name
            'tuned'
        """
        from vitconvert.api.sharing import push_directory, save_model

        done = save_model(
            cast("ViT", self),
            save_directory,
            to=to,
            allow=allow,
            labels=labels,
            preprocessing=preprocessing,
            max_shard_size=max_shard_size,
            verify=verify,
            overwrite=overwrite,
        )
        if push_to_hub:
            push_directory(
                done.output,
                repo_id or Path(save_directory).name,
                private=private,
                revision=revision,
                commit_message=commit_message,
                create_pr=create_pr,
                token=token,
            )
        return done

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool = False,
        revision: str | None = None,
        commit_message: str | None = None,
        create_pr: bool = False,
        token: str | None = None,
        **saving: Any,
    ) -> "Pushed":
        """Save the model, and publish that as `vitconvert push` does.

        Args:
            repo_id: `ORG/REPO`, or `REPO` of the token's owner; created if it is not there.
            private: Create it private.
            revision: The branch to commit to; it is created if it is not there.
            commit_message: Of the commit.
            create_pr: Propose the files in a pull request.
            token: By default, the one of `hf auth login`.
            saving: As for `save_pretrained`: `labels`, `preprocessing`, `to`, `allow`,
                `max_shard_size`, `verify`.

        Returns:
            The files that were sent, and where they are.

        Raises:
            UploadError: There is no token, or the Hub does not take the files.
            VitConvertError: The model cannot be saved, as for `save_pretrained`.
        """
        from vitconvert.api.sharing import push_model

        return push_model(
            cast("ViT", self),
            repo_id,
            private=private,
            revision=revision,
            commit_message=commit_message,
            create_pr=create_pr,
            token=token,
            **saving,
        )

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | PathLike[str],
        *,
        revision: str | None = None,
        token: str | None = None,
        cache_dir: str | PathLike[str] | None = None,
        local_files_only: bool = False,
        **options: Any,
    ) -> Self:
        """Load a model of a directory or repository, in whatever layout, in eval mode.

        Args:
            pretrained_model_name_or_path: A path, `ORG/REPO`, or another reference that
                `vitconvert.load_model` takes.
            revision: Branch, tag or commit of the repository.
            token: For private and gated repositories; by default, the one of `hf auth login`.
            cache_dir: Where downloads are kept.
            local_files_only: Use the cache and ask no server.
            options: As for `vitconvert.load_model`: `num_classes`, `image_size`, `dtype`,
                `dynamic_size`, ...

        Raises:
            UsageError: This is a subclass of somebody else's.
            VitConvertError: One of the errors of `vitconvert.load_model`.
        """
        from vitconvert.api.sharing import load_from
        from vitconvert.model.fast import FastViT
        from vitconvert.model.vit import ViT

        if cls not in (ViT, FastViT):
            raise UsageError(
                f"{cls.__name__}.from_pretrained would give a ViT, not a {cls.__name__}.",
                hint="load a ViT, and give its weights to yours: "
                "mine.load_state_dict(loaded.state_dict()).",
            )
        model = load_from(
            pretrained_model_name_or_path,
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
            fast=cls is FastViT,
            **options,
        )
        return cast("Self", model)
