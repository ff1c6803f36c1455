"""From a reference to local files with checked hashes; opens no file of tensors."""

from vitconvert.sources.located import Located
from vitconvert.sources.locating import locate

__all__ = ["Located", "locate"]
