"""What the machine is, and who else computes on it."""

import os
import platform
import re
from pathlib import Path


def busy() -> int:
    """How many processors were kept busy in the last minute; 0 where the system does not tell."""
    return round(os.getloadavg()[0]) if hasattr(os, "getloadavg") else 0


def processor() -> str:
    """Its name."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    found = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()
