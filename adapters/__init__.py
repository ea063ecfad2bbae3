"""LoRA for any captioner, through peft."""
