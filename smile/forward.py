"""Makes the forward of a model of transformers return an objective's loss.

Labels are as in transformers: -100 at positions that are not scored, such as padding, prompts and
images. The decoder of an encoder-decoder model reads labels shifted right, so that logits and
labels are aligned. In other models, the logits at a position predict the next label.
"""

import inspect
import re
from collections.abc import Mapping
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
    inner = unwrap(model)
    inner.forward = inner._smile = ObjectiveForward(inner, objective)
    inner.loss_function = inner._smile.placeholder
    inner.accepts_loss_kwargs = True  # so that Trainer passes num_items_in_batch
    return model


def undo(model: nn.Module) -> nn.Module:
    """Undo `use_smile`, if it was called on the model. Returns the model."""
    inner = unwrap(model)
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
    return unwrap(model)._smile.parts


def unwrap(model: nn.Module) -> nn.Module:
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


def is_trls(forward) -> bool:
    """Return whether this forward is that of TRL 1.10 to 1.14, which computes its own loss."""
    return getattr(forward, "__name__", "") == "_chunked_ce_forward"


def is_encoder_decoder(model: nn.Module) -> bool:
    """Return whether the model is an encoder-decoder. If so, logits at n predict the label at n."""
    configs = (model.config, getattr(model.config, "text_config", None))
    return any(getattr(config, "is_encoder_decoder", False) for config in configs)


class ObjectiveForward:
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
        if labels is None or "fused_lm_head" in inputs or is_trls(self.set_forward):
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
