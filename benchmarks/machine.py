"""What a benchmark ran on."""

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import torch

LIBRARIES = ("torch", "torchvision", "timm", "transformers")


def machine() -> dict[str, Any]:
    """Processor, its cores, GPU if any, torch's threads, and versions."""
    found = {
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "python": platform.python_version(),
    }
    return {**found, **{name: importlib.metadata.version(name) for name in LIBRARIES}}


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
