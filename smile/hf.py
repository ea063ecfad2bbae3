"""Trains models of transformers with our objectives, also in a trainer of transformers or TRL.

- `use_smile(model)` makes `model(**batch, labels=labels)` return the loss of an objective.
- `SmileLossMixin` makes a trainer of transformers, or TRL's SFTTrainer, minimise an objective.
- `compute_loss_func(model)` returns a loss function for `Trainer` and `Seq2SeqTrainer`, and leaves
  the model as it is.
"""
# ruff: noqa: F401

from collections.abc import Callable, Mapping
from typing import Any, Union

from torch import Tensor, nn

from smile.forward import (
    BATCH_KEYS,
    REMEDY,
    ObjectiveForward,
    is_trls,
    last_parts,
    undo,
    unwrap,
    use_smile,
)
from smile.objective import Objective


def compute_loss_func(
    model: nn.Module, objective: Union[Objective, str, Mapping[str, float]] = "smile"
) -> Callable:
    """Return the `compute_loss_func` of a `Trainer` or `Seq2SeqTrainer` for this model.

    The trainer passes no labels to the model. Therefore batches of an encoder-decoder model need
    `decoder_input_ids`, which `DataCollatorForSeq2Seq(tokenizer, model=model)` adds.
    """
    forward = ObjectiveForward(unwrap(model), objective)
    forward.guard.remove()

    def compute_loss(outputs, labels, num_items_in_batch=None) -> Tensor:
        return forward.loss(outputs, *forward.targets(labels), num_items_in_batch)

    return compute_loss


class SmileLossMixin:
    """Replaces a trainer's loss by an objective: `class SmileTrainer(SmileLossMixin, Trainer)`.

    The mixin is for `Trainer` and `Seq2SeqTrainer` of transformers and for `SFTTrainer` of TRL. It
    adds a keyword argument to the trainer's constructor: objective, an Objective or its spec, such
    as {"mle": 0.01, "smile": 0.99}. Batches may have `segments` and `weights`; see `use_smile`. In
    training, logits are computed only where labels are, if the model's class can. Logs include the
    parts of a mixture (`loss_smile`, `loss_mle`) and router losses (`aux_loss`), but not TRL's
    entropy, mean_token_accuracy and num_tokens, which its own loss computes.
    """

    def __init__(self, *args, objective: Any = "smile", **kwargs):
        self._smile_objective, self._smile_parts = objective, {True: [], False: []}
        super().__init__(*args, **kwargs)
        self.model_accepts_loss_kwargs = True
        self.model = self._with_objective(self.model)

    def _with_objective(self, model: nn.Module) -> nn.Module:
        inner = unwrap(model)
        if is_trls(inner.__dict__.get("forward")):
            del inner.forward
        use_smile(model, self._smile_objective)
        self._smile = inner._smile
        coefficient = getattr(self, "router_aux_loss_coef", None)  # TRL's, set in the config alone
        for module in model.modules() if coefficient is not None else ():
            if hasattr(module, "router_aux_loss_coef"):
                module.router_aux_loss_coef = coefficient
        return model

    def call_model_init(self, *args, **kwargs):
        """Return the model of `model_init` with the objective. `train` builds a new model, too."""
        return self._with_objective(super().call_model_init(*args, **kwargs))

    def _set_signature_columns_if_needed(self):
        super()._set_signature_columns_if_needed()
        self._signature_columns = [*self._signature_columns, *BATCH_KEYS]

    def evaluate(self, *args, **kwargs):
        self._smile_parts[False].clear()  # those of `predict`, which logs nothing
        return super().evaluate(*args, **kwargs)

    def _get_num_items_in_batch(self, batches, device=None):
        """Return the number of scored tokens, or the sum of their weights; a mean over processes.

        Gradients are averaged over processes, so that their loss is divided by this mean.
        """
        if not batches or "labels" not in batches[0]:
            return None
        items = sum(self._smile.tokens(batch) for batch in batches).to(device)
        if self.args.average_tokens_across_devices:
            items = self.accelerator.gather(items).mean()
        return items.masked_fill(items == 0, 1)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Return the loss of the model's forward, scaled as transformers' trainer expects.

        Router losses are averaged over accumulated batches.
        """
        training, steps = self.model.training, 1
        inputs = {**inputs, "keep_logits": not training}
        if getattr(self, "aux_loss_enabled", False):  # TRL's setting
            inputs["output_router_logits"] = True
        if num_items_in_batch is not None:
            steps = self.current_gradient_accumulation_steps if training else 1
            inputs["num_items_in_batch"] = num_items_in_batch / steps
        self._smile.parts = {}
        # SFTTrainer computes its own loss. Its base class takes the model's.
        classes = (x for x in type(self).__mro__ if x.__name__ == "SFTTrainer")
        above = super(next(classes, SmileLossMixin), self)
        loss, outputs = above.compute_loss(model, inputs, return_outputs=True)
        if not self._smile.parts:
            raise ValueError(f"{type(self).__name__}: another loss is trained, {REMEDY}")
        self._smile_parts[training].append(self._smile.parts)
        return (loss / steps, outputs) if return_outputs else loss / steps

    def log(self, logs, *args, **kwargs):
        for key, training in (("loss", True), ("eval_loss", False)):
            if key in logs and (parts := self._smile_parts[training]):
                for name in parts[0]:
                    mean = sum(x[name] for x in parts).item() / len(parts)
                    title = name if name.endswith("_loss") else f"loss_{name}"  # a router's
                    logs[key.replace("loss", title)] = mean
                parts.clear()
        return super().log(logs, *args, **kwargs)
