"""Provides what captioners share: LoRA through peft, model cards, exits of export programs."""

CONFIG = "adapter_config"  # the key of peft's configuration in a checkpoint
