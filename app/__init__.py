"""The web page: captions of one's own photos, by one or several checkpoints side by side."""

import captioning  # noqa: F401  # before torch, which its settings are for
