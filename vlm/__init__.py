"""Any image-text-to-text model of transformers as a captioner of this project.

The model's processor prepares photo and prompt (`prompt.py`). The training loss is over the
caption and the token that ends the turn (`tokenization.py`, `collate.py`). transformers' `generate`
makes captions (`generation.py`). transformers and peft are imported where they are used.
"""
