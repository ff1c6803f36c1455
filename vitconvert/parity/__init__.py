"""Proof that a loaded checkpoint computes what its own project's implementation computes."""

from vitconvert.parity.report import ParityReport
from vitconvert.parity.verification import verify, verify_reading

__all__ = ["ParityReport", "verify", "verify_reading"]
