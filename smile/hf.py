"""Trains models of transformers with our objectives, also in a trainer of transformers or TRL.

- `use_smile(model)` makes `model(**batch, labels=labels)` return the loss of an objective.
- `SmileLossMixin` makes a trainer of transformers, or TRL's SFTTrainer, minimise an objective.
- `compute_loss_func(model)` returns a loss function for `Trainer` and `Seq2SeqTrainer`, and leaves
  the model as it is.

Labels are as in transformers: -100 at positions that are not scored, such as padding, prompts and
images. The decoder of an encoder-decoder model reads labels shifted right, so that logits and
labels are aligned. In other models, the logits at a position predict the next label.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smile.loss import IGNORE
from smile.objective import Objective
from smile.packing import captions_of_turns, segments_from_position_ids

# Classes that generate text, but whose loss is not a language-modelling loss.
REFUSED = "XLNet|XLMWithLMHead|Flaubert|ProphetNet|Rag|Csm|CpmAnt"
# Keys of configurations: tokens of images and sounds, and those with which the labels of an
# encoder-decoder model may begin; the last ones are Whisper's.
MEDIA = "(image|video|audio)_token_(id|index)"
OPENINGS = "(bos|decoder_start|forced_bos|no_timestamps)_token_id|lang_to_id|task_to_id"
BATCH_KEYS = ("labels", "segments", "weights")
REMEDY = (
    "which is not the objective's. Train with class Mine(SmileLossMixin, SFTTrainer) of smile.hf, "
    "without Liger's fused_linear_cross_entropy, or call undo(model)"
)


def use_smile(
    model: nn.Module, objective: Union[Objective, str, Mapping[str, float]] = "smile"
) -> nn.Module:
    """Make `model(**batch, labels=labels)` return the objective's loss. Returns the model.

    - model: a generative model of transformers, or PEFT or torch.compile around one. Call this
      function before DDP or FSDP wraps the model.
    - objective: an Objective or its spec, such as {"mle": 0.01, "smile": 0.99}.

    The forward accepts these arguments besides labels (B, N):

    - segments and weights, aligned with the labels; see `Objective.forward`. Without segments, each
      contiguous run of labels is a caption; a run also ends where `position_ids` restart.
    - num_items_in_batch: the loss is the sum over tokens, divided by this number.
    - keep_logits: False computes logits only at positions that predict a label, if the class can.

    Raises ValueError for a model that does not generate text. In training the forward raises
    ValueError if another loss than the objective's is computed from the model.
    """
    undo(model)
    inner = _unwrap(model)
    inner.forward = inner._smile = _Forward(inner, objective)
    inner.loss_function = inner._smile.placeholder
    inner.accepts_loss_kwargs = True  # so that Trainer passes num_items_in_batch
    return model


def undo(model: nn.Module) -> nn.Module:
    """Undo `use_smile`, if it was called on the model. Returns the model."""
    inner = _unwrap(model)
    forward = inner.__dict__.pop("_smile", None)
    if forward is not None:
        forward.guard.remove()
        forward.objective = None  # a forward that was set later may still call it
        for name in ("loss_function", "_loss_function", "accepts_loss_kwargs"):
            inner.__dict__.pop(name, None)
        if inner.__dict__.get("forward") is forward:
            del inner.forward
            if forward.set_forward is not None:
                inner.forward = forward.set_forward
    return model


def last_parts(model: nn.Module) -> dict[str, Tensor]:
    """Return each objective's unweighted mean in the last step, and router losses, by name."""
    return _unwrap(model)._smile.parts


def compute_loss_func(
    model: nn.Module, objective: Union[Objective, str, Mapping[str, float]] = "smile"
) -> Callable:
    """Return the `compute_loss_func` of a `Trainer` or `Seq2SeqTrainer` for this model.

    The trainer passes no labels to the model. Therefore batches of an encoder-decoder model need
    `decoder_input_ids`, which `DataCollatorForSeq2Seq(tokenizer, model=model)` adds.
    """
    forward = _Forward(_unwrap(model), objective)
    forward.guard.remove()

    def compute_loss(outputs, labels, num_items_in_batch=None) -> Tensor:
        return forward.loss(outputs, *forward.targets(labels), num_items_in_batch)

    return compute_loss


def _unwrap(model: nn.Module) -> nn.Module:
    """Return the transformers model without torch.compile and PEFT."""
    model = model._modules.get("_orig_mod", model)
    model = model.get_base_model() if hasattr(model, "get_base_model") else model
    name, parameters = type(model).__name__, inspect.signature(type(model).forward).parameters
    can_generate = getattr(model, "can_generate", lambda: True)()  # transformers 4.15 cannot say
    if "labels" not in parameters or not can_generate or re.match(REFUSED, name):
        raise ValueError(
            f"{name} does not accept the labels of a text; give a generative model of "
            "transformers, before you wrap it by DDP or FSDP"
        )
    return model


def _is_trls(forward) -> bool:
    """Return whether this forward is that of TRL 1.10 to 1.14, which computes its own loss."""
    return getattr(forward, "__name__", "") == "_chunked_ce_forward"


def is_encoder_decoder(model: nn.Module) -> bool:
    """Return whether the model is an encoder-decoder. If so, logits at n predict the label at n."""
    configs = (model.config, getattr(model.config, "text_config", None))
    return any(getattr(config, "is_encoder_decoder", False) for config in configs)


class _Forward:
    """The forward of a model with an objective, which is computed from the output's logits.

    A class that calls `self.loss_function` gets a loss of 0 from it, the `placeholder`, to which it
    adds its router losses. Another class computes its own loss, which is not used.
    """

    def __init__(self, model: nn.Module, objective):
        self.model, self.name, self.parts = model, type(model).__name__, {}
        self.is_running = self.was_called = False
        self.objective = objective if isinstance(objective, Objective) else Objective(objective)
        self.set_forward = model.__dict__.get("forward")  # by another library
        self.parameters = [*inspect.signature(type(model).forward).parameters][1:]
        # The second are decoders that are used alone, such as BartForCausalLM.
        is_aligned = is_encoder_decoder(model) or hasattr(model.config, "decoder_layers")
        self.is_shifted = not is_aligned
        code = inspect.unwrap(type(model).forward).__code__
        self.calls_loss_function = self.is_shifted and "loss_function" in code.co_names
        decoder = getattr(model, "get_decoder", lambda: None)()
        base = getattr(model, model.base_model_prefix, None)
        parts = (decoder, base, [*model.children()][-1])
        watched = next(part for part in parts if part not in (None, model))
        self.guard = watched.register_forward_pre_hook(self.refuse)

    @property
    def __signature__(self):
        """The names of the class's parameters, and of columns that Trainer must not remove."""
        kind = inspect.Parameter.KEYWORD_ONLY
        names = (*self.parameters, "segments", "weights")
        return inspect.Signature([inspect.Parameter(name, kind) for name in names])

    @property
    def __func__(self):
        """This forward as a method's function, which accelerate and TRL 1.10 to 1.14 read."""
        wrap = wraps(type(self.model).forward)
        return wrap(lambda model, *args, **kwargs: self(*args, **kwargs))

    def refuse(self, module: nn.Module, *_) -> None:
        """Raise ValueError if the module runs in training, outside of this forward."""
        is_recomputed = torch._C._current_graph_task_id() != -1  # in a backward pass
        in_training = module.training and torch.is_grad_enabled() and not is_recomputed
        if in_training and not self.is_running:
            raise ValueError(f"{self.name}: another loss is trained, {REMEDY}")

    def placeholder(self, logits: Tensor, *_, **__) -> Tensor:
        if not self.is_running:
            raise ValueError(f"{self.name}: another forward was set, {REMEDY}")
        self.was_called = True
        return logits.new_zeros((), dtype=torch.float32)

    def __call__(self, *args, **kwargs) -> Any:
        inputs = {**dict(zip(self.parameters, args)), **kwargs}
        if self.objective is None:
            return self._run(inputs)
        items, keep_logits = inputs.pop("num_items_in_batch", None), inputs.pop("keep_logits", True)
        batch = {key: inputs.pop(key, None) for key in BATCH_KEYS}
        labels = batch["labels"]
        if labels is None or "fused_lm_head" in inputs or _is_trls(self.set_forward):
            self.refuse(self.model)
            return self._run(inputs)
        targets = self.targets(**batch, position_ids=inputs.get("position_ids"))
        used = (targets[0] != IGNORE).any(0).nonzero().squeeze(1)
        can_drop = self.calls_loss_function and "logits_to_keep" in self.parameters and len(used)
        # Bamba's z-loss depends on all logits.
        if can_drop and not keep_logits and not getattr(self.model, "z_loss_coefficient", 0):
            # Negative, because a model may put an image in front.
            inputs["logits_to_keep"] = used - labels.size(1)
            targets = [x[:, used] if x is not None and x.dim() == 2 else x for x in targets]
        if "use_cache" in self.parameters:
            inputs["use_cache"] = False  # a recomputed layer would add to it twice
        return_dict = inputs.pop("return_dict", self.model.config.return_dict)
        output = self._run({**inputs, "labels": labels, "return_dict": True})
        if self.calls_loss_function and not self.was_called:
            raise ValueError(f"{self.name}: its forward computes another loss, {REMEDY}")
        output = type(output)(**{**output, "loss": self.loss(output, *targets, items)})
        return output.to_tuple() if return_dict is False else output

    def _run(self, inputs: dict) -> Any:
        self.is_running, self.was_called = True, False
        try:
            if self.set_forward is not None:
                return self.set_forward(**inputs)
            return type(self.model).forward(self.model, **inputs)
        finally:
            self.is_running = False

    def targets(self, labels, segments=None, weights=None, position_ids=None):
        """Return the label that each position predicts, and its segment and weight; (B, N) each."""
        labels = labels.masked_fill(self._is_one_of(labels, MEDIA), IGNORE)
        texts = torch.zeros_like(labels) if segments is None else segments
        if not self.is_shifted:
            is_opening = self._is_one_of(labels, OPENINGS)
            is_opening &= (is_opening | (labels == IGNORE)).cumprod(1).bool()
            texts = is_opening.cumsum(1) + ~is_opening  # each is a caption for first-token MLE
        else:  # nothing predicts the first label of a text
            if segments is None and position_ids is not None:
                texts = segments_from_position_ids(position_ids).expand(len(labels), -1)
            starts = texts.diff(dim=1) != 0
            if segments is not None:  # a prompt may have another number than its caption
                starts &= labels[:, :-1] != IGNORE
            labels = labels.masked_fill(F.pad(starts, (1, 0), value=True), IGNORE)
        if segments is None:
            segments = captions_of_turns(labels, texts)
            segments = segments if (segments > 1).any() else None
        shift = int(self.is_shifted)
        aligned = (labels, segments, weights)
        return [x if x is None or x.dim() == 1 else x.roll(-shift, 1) for x in aligned]

    def _is_one_of(self, labels, keys: str) -> Tensor:
        """Return whether labels are token ids of the configuration. keys: a pattern of names."""
        generation = getattr(self.model, "generation_config", self.model.config)
        ids = set()
        for key, value in (*vars(self.model.config).items(), *vars(generation).items()):
            if re.fullmatch(keys, key):
                ids |= {*value.values()} if isinstance(value, dict) else {value}
        return torch.isin(labels, labels.new_tensor([x for x in ids if isinstance(x, int)]))

    def loss(self, output, targets, segments=None, weights=None, num_items=None) -> Tensor:
        """Return the objective of an output's logits, plus the model's other losses."""
        logits = output["logits"]
        if logits.size(1) < targets.size(1) or len(logits) != len(targets):
            raise ValueError(
                f"labels of {tuple(targets.shape)} for logits of {tuple(logits.shape[:2])}; give "
                "one for each token"
            )
        logits = logits[:, -targets.size(1) :]  # a model may put an image in front
        batch = (x if x is None else x.to(logits.device) for x in (targets, segments, weights))
        result = self.objective(logits, *batch)
        self.parts, loss = dict(result.parts), result.loss
        if num_items is not None:
            loss = loss * (result.tokens / torch.as_tensor(num_items, device=loss.device))
        if self.was_called:
            loss = loss + output["loss"].to(loss.device)
        config = getattr(self.model.config, "text_config", self.model.config)
        for name in output:
            kind = re.search("(aux|z)_loss$", name)
            if kind and torch.is_tensor(output[name]):
                self.parts[name] = output[name].detach()
                if not self.was_called:
                    keys = (f"router_{kind[0]}_coef", "aux_loss_coef")  # the second is JetMoe's
                    coefficient = next((getattr(config, x) for x in keys if hasattr(config, x)), 0)
                    loss = loss + coefficient * output[name].to(loss.device)
        return loss

    def tokens(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the number of scored tokens of a batch, or the sum of their weights."""
        keys = (*BATCH_KEYS, "position_ids")
        targets, _, weights = self.targets(**{key: batch.get(key) for key in keys})
        scored = (targets != IGNORE).float()
        return (scored if weights is None else scored * weights.view(len(scored), -1)).sum()


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
        inner = _unwrap(model)
        if _is_trls(inner.__dict__.get("forward")):
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
