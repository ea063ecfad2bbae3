"""The web page: captions the visitor's photos with one or several checkpoints side by side."""
