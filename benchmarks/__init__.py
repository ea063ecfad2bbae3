"""Programs that measure this project beside a peer, alternately, in one run."""

TOPICS = ("captioning", "training", "objective", "loader", "vlm", "one_photo")
