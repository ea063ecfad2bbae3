"""Provides a mixin with which trainers of transformers and TRL's SFTTrainer minimise an objective.

This module imports neither transformers nor TRL.
"""

import inspect
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional, Union

import torch
from torch import Tensor, nn

from smile.hf.conflicts import MODEL_LOSS_TRAINERS, find_conflicts, reads_logits
from smile.hf.forward import ObjectiveLike, last_parts, to_objective, use_smile
from smile.hf.label_alignment import IGNORE_INDEX
from smile.hf.packed import BATCH_KEYS, Targets
from smile.hf.running_means import RunningMeans
from smile.labels import count_labels, prepare_weights


class SmileLossMixin:
    """Replaces a trainer's loss by an objective: `class SmileTrainer(SmileLossMixin, Trainer)`.

    The mixin is for `Trainer` and `Seq2SeqTrainer` of transformers and for `SFTTrainer` of TRL. It
    adds two keyword arguments to the trainer's constructor:

    - objective: an Objective or its spec, such as {"mle": 0.01, "smile": 0.99}. The default is
      SMILE with first-token MLE.
    - from_hidden: see `use_smile`. A user's trainer with its own compute_loss always gets logits.

    A batch may have `segments` and `weights`; see `use_smile`. The constructor raises ValueError
    for settings that use another loss or cut captions into pieces.

    Logs include the parts of a mixture (`loss_smile`, `loss_mle`) and auxiliary losses
    (`aux_loss`). They do not include TRL's entropy and mean_token_accuracy, which need logits.
    """

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        index = cls.__mro__.index(SmileLossMixin)
        for base in cls.__mro__[:index]:
            is_ours = issubclass(base, SmileLossMixin)
            if not is_ours and hasattr(base, "compute_loss") and hasattr(base, "train"):
                raise TypeError(f"{cls.__name__}: put SmileLossMixin before {base.__name__}")
        # `compute_loss` calls the first of these classes. SFTTrainer is left out: it minimises the
        # model's loss, as its base class does, but its compute_loss also reads logits.
        cls._loss_classes = [
            base
            for base in cls.__mro__[index + 1 :]
            if "compute_loss" in vars(base) and base.__name__ != "SFTTrainer"
        ]
        for base in cls._loss_classes:
            if not reads_logits(base) and base.__name__ not in MODEL_LOSS_TRAINERS:
                raise ValueError(
                    f"{cls.__name__}: {base.__name__} has another loss; leave SmileLossMixin out"
                )

    def __init__(
        self,
        *args,
        objective: ObjectiveLike = None,
        from_hidden: bool = True,
        **kwargs,
    ):
        self.smile_objective = to_objective(objective)
        self._from_hidden = from_hidden
        self._wants_logits = True
        self._train_means = RunningMeans()
        self._eval_means = RunningMeans()
        self._accumulated_batches = 1
        self._trained_tokens = 0
        arguments = inspect.signature(super().__init__).bind_partial(*args, **kwargs).arguments
        columns = _column_names(arguments.get("train_dataset"))
        self._batch_columns = [name for name in BATCH_KEYS if name in columns]
        super().__init__(*args, **kwargs)
        for conflict in find_conflicts(self):
            raise ValueError(f"{type(self).__name__}: {conflict}")
        self._add_objective(self.model)
        # If True, the loss is divided by the number of scored labels (see `_count_items`), not by
        # the number of accumulated batches. With sequence parallelism the value is False, because
        # the trainer then counts labels itself.
        parallel = getattr(getattr(self, "accelerator", None), "parallelism_config", None)
        self.model_accepts_loss_kwargs = not getattr(parallel, "sp_enabled", False)

    def _add_objective(self, model: nn.Module) -> nn.Module:
        """Call `use_smile` on the model, and return it."""
        self._objective_model = use_smile(model, self.smile_objective, self._from_hidden)
        # TRL sets router_aux_loss_coef in the configuration after the model was built. The model's
        # modules have copied the old value, so that it is set in the modules, too.
        if hasattr(self, "aux_loss_enabled"):
            config = getattr(model.config, "text_config", model.config)
            for module in model.modules():
                if "router_aux_loss_coef" in vars(module).keys() & vars(config).keys():
                    module.router_aux_loss_coef = config.router_aux_loss_coef
        return model

    def call_model_init(self, *args, **kwargs):
        """Return the model of `model_init` with the objective. `train` builds a new model, too."""
        return self._add_objective(super().call_model_init(*args, **kwargs))

    def _save_optimizer_and_scheduler(self, output_dir):
        """Also save the objective's state, one file per process."""
        super()._save_optimizer_and_scheduler(output_dir)
        if state := self.smile_objective.state():
            os.makedirs(output_dir, exist_ok=True)  # only the first process has created it
            torch.save(state, self._state_path(output_dir))

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or not self.smile_objective.state():
            return
        try:
            state = torch.load(self._state_path(checkpoint), map_location="cpu", weights_only=True)
        except FileNotFoundError as error:
            warnings.warn(
                f"truncation drops no captions until its window is full again: {error}",
                stacklevel=2,
            )
        else:
            self.smile_objective.restore(state)

    def _state_path(self, checkpoint: str) -> str:
        return os.path.join(checkpoint, f"smile_objective_{self.args.process_index}.pt")

    def _set_signature_columns_if_needed(self):
        super()._set_signature_columns_if_needed()
        self._signature_columns = list(dict.fromkeys([*self._signature_columns, *BATCH_KEYS]))

    def get_batch_samples(self, *args, **kwargs):
        """Return the batches to accumulate, and the divisor of the sum of their token losses."""
        batches, _ = super().get_batch_samples(*args, **kwargs)
        self._accumulated_batches = len(batches)
        return batches, self._count_items(batches)

    def _get_num_items_in_batch(self, batches, *_):
        """Return the divisor of an evaluation batch; None in training, see `get_batch_samples`."""
        return None if self.model.training else self._count_items(batches)

    def _count_items(self, batches: Sequence[Mapping[str, Tensor]]) -> Optional[Tensor]:
        """Return the number of scored labels in all processes, or the sum of their weights.

        Return None if the trainer counts the labels itself, or if a batch has no labels.
        """
        labelled = all({"labels", "shift_labels"} & batch.keys() for batch in batches)
        if not (self.model_accepts_loss_kwargs and batches and labelled):
            return None
        items = sum(map(self._count_scored, batches))
        if self._processes() > 1:
            items = self.accelerator.gather(items.to(self.args.device)).sum()
            items = _divide(items, self._size("tp") * self._size("cp") * self._size("sp"))
        return items.masked_fill(items == 0, 1)

    def _processes(self) -> int:
        """Return how many processes count labels together; 1 if each process counts its own.

        Tensor-parallel processes have the same labels and count as one process.
        """
        if not getattr(self.args, "average_tokens_across_devices", False):
            return 1
        return self.accelerator.num_processes // self._size("tp")

    def _size(self, kind: str) -> int:
        """Return how many processes share a batch. kind: "tp", "cp" or "sp".

        The kinds are tensor, context and sequence parallelism.
        """
        return getattr(self, f"get_{kind}_size", lambda: 1)()

    def _count_scored(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the number of scored labels of a batch, or the sum of their weights."""
        targets = Targets(self._objective_model, self.smile_objective, batch)
        aligned = targets.align(targets.original_labels.unsqueeze(2))
        labels, weights = prepare_weights(aligned.labels, aligned.weights, IGNORE_INDEX)
        return count_labels(labels, weights, IGNORE_INDEX)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Return the loss of the model's forward, scaled as transformers' trainer expects.

        Auxiliary losses are averaged over accumulated batches and processes.
        """
        inputs = dict(inputs)
        training = self.model.training
        inputs.pop("_prediction_loss_only", None)  # TRL's own flag, which the model does not accept
        for name in self._batch_columns if training else ():
            if name not in inputs:
                raise ValueError(
                    f"{type(self).__name__}: the data set has a column {name}, but batches do not; "
                    "give a data_collator that keeps it"
                )
        if getattr(self, "aux_loss_enabled", False):  # TRL's setting
            inputs["output_router_logits"] = True  # some models read it only from the batch
        loss_class = self._loss_classes[0]
        wants_logits = (self._wants_logits and not training) or reads_logits(loss_class)
        inputs["keep_logits"] = wants_logits or not self._from_hidden
        steps = self._accumulated_batches if training else 1
        if num_items_in_batch is not None:
            # The count is passed in the batch, not as an argument of compute_loss, so that the
            # trainer does not scale the loss once more. The loss is divided by `steps` below, and
            # gradients are averaged over processes. So the accumulated gradient is that of the sum
            # over all tokens divided by `items`.
            inputs["num_items_in_batch"] = _divide(num_items_in_batch, steps * self._processes())
        parts_before = last_parts(self._objective_model)
        loss, outputs = loss_class.compute_loss(self, model, inputs, return_outputs=True)
        parts = last_parts(self._objective_model)
        if parts is parts_before or not self.smile_objective.weights.keys() <= parts.keys():
            raise ValueError(
                f"{type(self).__name__}: the trained model does not have the trainer's objective, "
                "because the model or its loss was changed later; create the trainer with this "
                "model"
            )
        if num_items_in_batch is not None:
            loss = loss / steps
        self._record_parts(parts, inputs, steps, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def _record_parts(self, parts: dict[str, Tensor], inputs, steps: int, items) -> None:
        """Add the parts of a batch's loss to the logged means, scaled like the logged loss."""
        values = {name: parts[name] for name in parts.keys() - self.smile_objective.weights.keys()}
        if len(self.smile_objective.weights) > 1:
            share = 1.0
            if items is not None:
                share = self._count_scored(inputs) * steps * self._processes() / items
                share = share.to(next(iter(parts.values())).device)  # the head's device
            values.update(
                {f"loss_{name}": parts[name] * share for name in self.smile_objective.weights}
            )
        if self.model.training:
            self._train_means.add(values, 1 / steps)
        else:
            self._eval_means.add(values, len(inputs.get("labels", inputs.get("shift_labels"))))
        if hasattr(self, "_metrics"):
            self._count_tokens(inputs)

    def _count_tokens(self, inputs: Mapping[str, Tensor]) -> None:
        """Set `num_tokens` in `_metrics`, which TRL logs: all tokens trained so far, no padding."""
        if self.model.training:
            token_count = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).sum()
            token_count = self.accelerator.gather(token_count).sum().item()
            self._trained_tokens += token_count // self._size("tp")
        mode = "train" if self.model.training else "eval"
        self._metrics[mode]["num_tokens"] = [self._trained_tokens]

    def train(self, *args, **kwargs):
        self._train_means = RunningMeans()
        return super().train(*args, **kwargs)

    def log(self, logs, *args, **kwargs):
        if "loss" in logs:
            logs.update(self._train_means.means())
        return super().log(logs, *args, **kwargs)

    def prediction_step(self, model, inputs, prediction_loss_only, *args, **kwargs):
        self._wants_logits = not prediction_loss_only
        try:
            return super().prediction_step(model, inputs, prediction_loss_only, *args, **kwargs)
        finally:
            self._wants_logits = True

    def evaluation_loop(self, *args, metric_key_prefix="eval", **kwargs):
        self._eval_means = RunningMeans()
        kwargs["metric_key_prefix"] = metric_key_prefix
        result = super().evaluation_loop(*args, **kwargs)
        for name, value in self._eval_means.means().items():
            result.metrics[f"{metric_key_prefix}_{name}"] = value
        return result


def _column_names(rows: Any) -> Iterable[str]:
    """Return a data set's column names, or the first row's keys if a streaming one has no names."""
    columns = getattr(rows, "column_names", ())
    return next(iter(rows), ()) if columns is None else columns


def _divide(items: Union[Tensor, int], divisor: int) -> Union[Tensor, int, float]:
    """Return items / divisor, in float64 if the device supports it."""
    if divisor == 1:
        return items
    is_widened = isinstance(items, Tensor) and items.device.type != "mps"
    return (items.double() if is_widened else items) / divisor
