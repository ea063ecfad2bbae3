"""Trains and runs any image-text-to-text model of transformers as a captioner of this project.

The model's processor prepares photo and prompt (`prompt.py`). The training loss covers the caption
and the token that ends the turn (`tokenization.py`, `batch.py`). `generate` of transformers
generates captions (`generation.py`). transformers and peft are imported only in the functions that
need them.
"""
