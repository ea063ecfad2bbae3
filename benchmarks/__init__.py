"""Programs that measure this project beside a peer, alternately, in one run."""

TOPICS = ("captioning", "int8", "training", "objective", "loader", "vlm", "one_photo")
