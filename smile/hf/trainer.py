"""A mixin that makes a trainer of transformers, or TRL's SFTTrainer, minimise the objective.

Nothing of either is imported: what a trainer has is looked at when it is there.
"""

from collections.abc import Mapping
from typing import Union

from torch import Tensor, nn

from smile.hf.conflicts import conflicts, of_trl
from smile.hf.forward import use_smile
from smile.objective import Objective


class SmileLossMixin:
    """The objective in place of a trainer's loss: `class SmileTrainer(SmileLossMixin, Trainer)`.

    For `Trainer` and `Seq2SeqTrainer` of transformers and `SFTTrainer` of TRL. Two keywords are
    added to the trainer's own. objective: an Objective, or what one is made of, such as
    {"mle": 0.01, "smile": 0.99}; SMILE with first-token MLE if none is given. from_hidden: whether
    the loss is taken from hidden states, so that logits are never all there. ValueError where the
    trainer is told of another loss, or to cut captions in pieces.
    """

    def __init__(
        self,
        *args,
        objective: Union[Objective, str, Mapping[str, float], None] = None,
        from_hidden: bool = True,
        **kwargs,
    ):
        if not isinstance(objective, Objective):
            objective = Objective() if objective is None else Objective(objective)
        self.objective, self._from_hidden = objective, from_hidden  # for model_init, called below
        self._logits_wanted = True
        super().__init__(*args, **kwargs)
        for conflict in conflicts(self):
            raise ValueError(f"{type(self).__name__}: {conflict}")
        self._with_objective(self.model)
        self.model_accepts_loss_kwargs = True

    def _with_objective(self, model: nn.Module) -> nn.Module:
        use_smile(model, self.objective, self._from_hidden)
        return model

    def call_model_init(self, *args, **kwargs):
        """The model that `model_init` makes, with the objective; train() asks for a new one."""
        return self._with_objective(super().call_model_init(*args, **kwargs))

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """The loss that the model's forward returns, scaled as the trainer of transformers does."""
        inputs = dict(inputs)
        if getattr(self, "aux_loss_enabled", False):
            inputs["output_router_logits"] = True
        items = {} if num_items_in_batch is None else {"num_items_in_batch": num_items_in_batch}
        loss, outputs = self._own_compute_loss(model, inputs, return_outputs=True, **items)
        if hasattr(self, "_total_train_tokens"):
            self._count_tokens(inputs)
        return (loss, outputs) if return_outputs else loss

    def _own_compute_loss(self, *args, **kwargs):
        """compute_loss of the next trainer but TRL's, which reads a loss off its own head."""
        classes = type(self).__mro__
        for base in classes[classes.index(SmileLossMixin) + 1 :]:
            if "compute_loss" in vars(base) and not of_trl(base):
                return base.compute_loss(self, *args, **kwargs)
        raise TypeError(f"{type(self).__name__} is no trainer: put SmileLossMixin before one")

    def _count_tokens(self, inputs: Mapping[str, Tensor]) -> None:
        """TRL's num_tokens, those of padding left out."""
        mode = "train" if self.model.training else "eval"
        if mode == "train":
            ids = inputs["input_ids"]
            seen = (
                inputs["attention_mask"].sum()
                if "attention_mask" in inputs
                else ids.new_tensor(ids.numel())
            )
            self._total_train_tokens += self.accelerator.gather(seen).sum().item() // self._tp_size
        self._metrics[mode]["num_tokens"] = [self._total_train_tokens]
