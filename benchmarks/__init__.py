"""Measures this project and compares it with other implementations, which run in turn."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
# The topics are modules of this package, see `benchmarks.topic`.
TOPICS = ("captioning", "decoding", "training", "objective", "loader")
