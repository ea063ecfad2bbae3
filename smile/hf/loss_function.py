"""Makes an objective the `compute_loss_func` of a trainer of transformers."""

from collections.abc import Callable
from typing import Optional

from torch import Tensor, nn

from smile.hf.auxiliary import auxiliary_losses
from smile.hf.forward import to_objective, total_loss, unwrap_model
from smile.hf.head_table import needs_labels_for_mask
from smile.hf.packed import Targets
from smile.objective import Objective


def compute_loss_func(model: nn.Module, objective: Optional[Objective] = None) -> Callable:
    """Return the `compute_loss_func` of a `Trainer` or `Seq2SeqTrainer` for this model.

    The trainer does not pass labels to the model. Therefore batches of an encoder-decoder model
    need `decoder_input_ids`, which `DataCollatorForSeq2Seq(tokenizer, model=model)` adds. The
    returned function gets only the labels of a batch, so that packed rows need `use_smile` instead.
    The returned function raises ValueError if the labels show that rows are packed.
    """
    model = unwrap_model(model)
    objective = to_objective(objective)
    if needs_labels_for_mask(model):
        raise ValueError(
            f"{type(model).__name__} before transformers 5.0 masks text by its labels; call "
            "use_smile for it"
        )

    def compute_loss(outputs, labels: Tensor, num_items_in_batch=None) -> Tensor:
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        targets = Targets(model, objective, {"labels": labels}).set_segments()
        fields = {**outputs, "loss": None} if isinstance(outputs, dict) else {}
        auxiliary_loss, _ = auxiliary_losses(model, fields)
        return total_loss(objective(*targets.align(logits)), num_items_in_batch, auxiliary_loss)

    return compute_loss
