"""The objective as the `compute_loss_func` of a trainer of transformers."""

from collections.abc import Callable
from typing import Optional

from torch import Tensor, nn

from smile.hf.auxiliary import auxiliary
from smile.hf.forward import checked, model_inside, total_loss
from smile.hf.head_table import masks_by_labels
from smile.hf.packed import Targets
from smile.objective import Objective


def compute_loss_func(model: nn.Module, objective: Optional[Objective] = None) -> Callable:
    """The `compute_loss_func` of `Trainer` or `Seq2SeqTrainer` for this model.

    The trainer keeps labels from the model, so an encoder-decoder model needs `decoder_input_ids`
    in its batches: `DataCollatorForSeq2Seq(tokenizer, model=model)` adds them. The function sees
    the labels of a batch alone: packed rows need `use_smile`, and are refused where labels show it.
    """
    model, objective = model_inside(model), checked(objective)
    if masks_by_labels(model):
        line = "before transformers 5.0 masks text by its labels; call use_smile for it"
        raise ValueError(f"{type(model).__name__} {line}")

    def compute_loss(outputs, labels: Tensor, num_items_in_batch=None) -> Tensor:
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        targets = Targets(model, objective, labels).check()
        fields = {**outputs, "loss": None} if isinstance(outputs, dict) else {}
        added, _ = auxiliary(model, fields)
        return total_loss(objective(*targets.of(logits)), num_items_in_batch, added)

    return compute_loss
