"""Defines, reads, validates and writes the configuration of a run."""
# ruff: noqa: F401

from captioning.config.config import Config, keys_of, parse_config
from captioning.config.loading import explained, load_config, parse_overrides, write_config
