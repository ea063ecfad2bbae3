"""Any model of transformers that makes text of images, as a captioner of this project.

Its processor makes photos and the prompt into what it reads (`question.py`), training scores the
caption and the end of the turn (`words.py`, `rows.py`) and the library's `generate` draws
(`drawing.py`). transformers and peft are imported where they are used.
"""
