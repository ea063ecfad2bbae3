"""The web page: captions of one's own photos, by one or several checkpoints side by side."""
