"""The package shown at work, offline, on a tiny model of its own."""

from vitconvert.demo.demonstration import Demonstration, demonstrate

__all__ = ["Demonstration", "demonstrate"]
