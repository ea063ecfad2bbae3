"""Captions millions of images in shards. Runs can be resumed; an image is captioned once."""
