"""Programs that measure this project and other implementations in turn, in one run."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
# Names of modules of this package, see `benchmarks.topic`.
TOPICS = ("captioning", "decoding", "training", "objective", "loader")
