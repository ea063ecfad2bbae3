"""Trains models of transformers with our objectives. This package does not import transformers.

There are three ways:

- `use_smile(model)` makes `model(**batch, labels=labels)` return the loss of an objective, with any
  version of transformers.
- `SmileLossMixin` makes a trainer of transformers, or TRL's SFTTrainer, minimise an objective.
- `compute_loss_func(model)` returns a loss function for `Trainer` and `Seq2SeqTrainer` of
  transformers 4.46 and later. This way does not change the model.

Labels are as in transformers: -100 at positions that are not scored, such as padding, prompts and
images. The decoder of an encoder-decoder model reads labels shifted right, so that logits and
labels are aligned. In other models, the logits at a position predict the next label.
"""

# ruff: noqa: F401

from pkgutil import resolve_name
from typing import Any

from smile.hf.forward import last_parts, undo, use_smile

# Names that are imported at first use.
_LAZY_NAMES = {
    "SmileLossMixin": "smile.hf.trainer:SmileLossMixin",
    "compute_loss_func": "smile.hf.loss_function:compute_loss_func",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return resolve_name(_LAZY_NAMES[name])
