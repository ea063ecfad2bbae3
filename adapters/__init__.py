"""Provides what captioners share: LoRA through peft, model cards, exits of export programs."""
