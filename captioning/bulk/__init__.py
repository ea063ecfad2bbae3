"""Captions millions of images in shards. A stopped run can be resumed."""
