"""The objective in models of transformers, which this package does not import.

There are three ways in. `use_smile(model)` makes `model(**batch, labels=labels)` return the loss of
an objective, with every version of transformers. `SmileLossMixin` makes a trainer do so, TRL's
SFTTrainer too. `compute_loss_func(model)` is for `Trainer` and `Seq2SeqTrainer` of 4.46 and later,
and leaves the model alone.

Labels are as transformers has them: -100 where nothing is scored, which is padding, a prompt and
the places of an image. An encoder-decoder model gets the labels moved to the right as its input, so
that its logits are in step with them; any other model's logits are one ahead.
"""

from smile.hf.forward import compute_loss_func, last_parts, undo, use_smile
from smile.hf.trainer import SmileLossMixin

__all__ = ["SmileLossMixin", "compute_loss_func", "last_parts", "undo", "use_smile"]
