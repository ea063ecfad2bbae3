"""The configuration of a run: every key, what it is for, and how it is read and written."""

from BLIP.vit import VitSizes
from captioning.config.config import Config, keys_of, load_config, write_config

__all__ = ["Config", "VitSizes", "keys_of", "load_config", "write_config"]
