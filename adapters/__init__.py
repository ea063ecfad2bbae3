"""What captioners share: LoRA through peft, model cards, and how export programs end."""
