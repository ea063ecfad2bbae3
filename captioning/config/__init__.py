"""The configuration of a run: every key, what it is for, and how it is read and written."""

from captioning.config.config import Config, VitSizes, load_config, write_config

__all__ = ["Config", "VitSizes", "load_config", "write_config"]
