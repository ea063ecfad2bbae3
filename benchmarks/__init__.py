"""Programs that measure this project and a peer in one run, taking turns."""

TOPICS = ("captioning", "decoding", "training", "objective", "loader")
