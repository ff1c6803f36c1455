"""Trees of arrays in JAX: the branch of the weights, beside the state of a training run."""

from collections import Counter
from dataclasses import replace

from vitconvert.containers.container import Container

_WEIGHTS = "params"  # of flax.core variables, flax.training.TrainState and big_vision


def branch_of_weights(container: Container, prefer: tuple[str, ...]) -> Container:
    """A tree's weights under the names that they have in their branch.

    Args:
        container: The whole tree; its names have the keys of branches, joined by "/".
        prefer: Keys of branches to try before "params".

    Returns:
        The branch, with the key as wrapper and what else there is as extras; or the whole tree if
        it has no such branch.
    """
    for key in (*prefer, _WEIGHTS):
        names = {n.removeprefix(f"{key}/"): n for n in container.manifest if _is_in(n, key)}
        if not names:
            continue
        others = Counter(n.partition("/")[0] for n in container.manifest if not _is_in(n, key))
        told = {other: f"{count} arrays" for other, count in others.items()}
        branch = replace(
            container.renamed(names),
            wrapper=(*container.wrapper, key),
            extras={**container.extras, **told},
        )
        return branch_of_weights(branch, prefer)
    return container


def _is_in(name: str, branch: str) -> bool:
    return name.startswith(f"{branch}/")
