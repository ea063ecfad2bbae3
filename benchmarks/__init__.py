"""Programs that measure this project and other implementations in turn, in one run."""

# Names of modules of this package, see `benchmarks.topic`.
TOPICS = ("captioning", "decoding", "training", "objective", "loader")
