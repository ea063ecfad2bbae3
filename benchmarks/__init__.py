"""Programs that measure this project beside a peer, alternately, in one run."""

import captioning  # noqa: F401 - threads and memory as the programs that users run have them

TOPICS = ("captioning", "int8", "training", "objective", "loader", "vlm", "one_photo")
