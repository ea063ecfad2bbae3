"""Captions of a million images: divided into shards, resumed, each image once and none missing."""
