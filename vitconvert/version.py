"""The release. `importlib.metadata` knows it too, but takes longer than a small conversion."""

LIBRARY = "vitconvert"
VERSION = "0.1.0"
