"""Defines, reads, validates and writes the configuration of a run."""

from captioning.config.config import Config, config_class, every_key, keys_of, parse_config
from captioning.config.loading import explained, load_config, write_config

__all__ = [
    "Config",
    "config_class",
    "every_key",
    "explained",
    "keys_of",
    "load_config",
    "parse_config",
    "write_config",
]
