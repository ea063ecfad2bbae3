"""The objective in models of transformers, which this package does not import.

There are three ways in. `use_smile(model)` makes `model(**batch, labels=labels)` return the loss of
an objective, with every version of transformers. `SmileLossMixin` makes a trainer do so, TRL's
SFTTrainer too. `compute_loss_func(model)` is for `Trainer` and `Seq2SeqTrainer` of 4.46 and later,
and leaves the model alone.

Labels are as transformers has them: -100 where nothing is scored, which is padding, a prompt and
the places of an image. An encoder-decoder model gets the labels moved to the right as its input, so
that its logits are in step with them; any other model's logits are one ahead.
"""

from typing import Any

from smile.hf.forward import last_parts, undo, use_smile
from smile.loading import load

__all__ = ["SmileLossMixin", "compute_loss_func", "last_parts", "undo", "use_smile"]

# For trainers, and imported when they are asked for.
_LATER = {
    "SmileLossMixin": "smile.hf.trainer:SmileLossMixin",
    "compute_loss_func": "smile.hf.loss_function:compute_loss_func",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load(_LATER[name])
