"""Makes the forward of a transformers model return the objective's loss."""

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional, Union

import torch
from torch import Tensor, nn

from smile.hf.auxiliary import auxiliary_losses
from smile.hf.head import LinearHead, linear_head
from smile.hf.label_alignment import (
    IGNORE_INDEX,
    add_decoder_inputs,
    add_labels_for_mask,
    unwrap_generative,
)
from smile.hf.misuse_checks import (
    REMEDY,
    Call,
    is_running,
    output_logits,
    refuse_other_losses,
    unwatch_model,
    watch_decoder_and_head,
    watch_module,
)
from smile.hf.packed import BATCH_KEYS, Targets
from smile.hf.refusal import refuse
from smile.objective import Objective, ObjectiveOutput

ObjectiveLike = Union[Objective, str, Mapping[str, float], None]


@dataclass(eq=False)
class _Settings:
    """What `use_smile` stores on a model, as `model._smile`."""

    objective: Objective
    from_hidden: bool
    argument_names: list[str]  # of the class's forward, in order
    parts: dict[str, Tensor] = field(default_factory=dict)  # see `last_parts`
    head_is_checked: bool = False  # whether `LinearHead.changed_rows` has checked the head
    is_warned: bool = False  # whether `_warn_of_logits` has warned the user


def use_smile(
    model: nn.Module, objective: ObjectiveLike = None, from_hidden: bool = False
) -> nn.Module:
    """Make `model(**batch, labels=labels)` return the objective's loss. Returns the model.

    - model: a generative model of transformers, or PEFT or torch.compile around one. Call this
      function before DDP or FSDP wraps the model.
    - objective: an Objective or its spec, such as {"mle": 0.01, "smile": 0.99}. The default is
      SMILE with first-token MLE.
    - from_hidden: compute the training loss from the language head's input, without a tensor of all
      logits. The output then has no logits. If the model's class is not in `smile.hf.head_table` or
      its head is not a plain linear layer, a warning is given and the loss uses all logits.

    The forward accepts these arguments besides labels (B, N):

    - shift_labels (B, N) instead of labels: the label at a position is the next token.
    - segments and weights, aligned with the labels; see `smile_loss`.
    - num_items_in_batch: the loss is the sum over tokens, divided by this number.
    - keep_logits: overrides `from_hidden`. True computes the loss from logits and returns logits.

    Without segments, rows are split into texts by `seq_idx`, `cu_seq_lens_q` or `position_ids`, and
    each contiguous run of labels in a text is a caption. The forward raises ValueError for a row
    that seems to be packed although the batch has none of these three keys, and if tokens of one
    text could attend to another text of the row. In training it also raises ValueError if another
    loss is computed from the model; see `smile.hf.misuse_checks`.
    """
    unwrapped = unwrap_model(model)
    undo(unwrapped)
    objective = to_objective(objective)
    original_class = type(unwrapped)
    watch_decoder_and_head(unwrapped)
    parameters = inspect.signature(original_class.forward).parameters
    unwrapped._smile = _Settings(objective, from_hidden, argument_names=list(parameters)[1:])
    if from_hidden and linear_head(unwrapped) is None:
        _warn_of_logits(unwrapped, unwrapped._smile)
    # If another library has set `model.forward`, the objective's forward calls that function. If a
    # library sets `model.forward` later, the library's function calls the objective's forward.
    unwrapped._smile_forwards = (
        *getattr(unwrapped, "_smile_forwards", ()),
        unwrapped.__dict__.pop("forward", None),
    )
    unwrapped.__class__ = _add_objective(original_class, len(unwrapped._smile_forwards) - 1)
    return model


def _add_objective(original_class: type, level: int) -> type:
    """Return a subclass of `original_class` whose forward returns the objective's loss.

    level: the index in `_smile_forwards` of the forward that was set on the instance before this
    call of `use_smile`, or of None if none was set. The forward is not set on the instance, because
    copies and replicas of a model would share it. The subclass has the name of `original_class`,
    because checkpoints and Trainer read the name.
    """

    def forward(self, *args, **kwargs):
        set_forward = self._smile_forwards[level]
        inner_forward = (
            functools.partial(original_class.forward, self) if set_forward is None else set_forward
        )
        settings = getattr(self, "_smile", None)
        if settings is None or is_running(self):
            return inner_forward(*args, **kwargs)
        return _forward(self, settings, inner_forward, args, kwargs)

    # Trainer removes data set columns that are not in the signature, so that BATCH_KEYS are added.
    signature = inspect.signature(original_class.forward)
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    added = {name: inspect.Parameter(name, keyword_only, default=None) for name in BATCH_KEYS}
    parameters = {**added, **signature.parameters}
    ordered = sorted(parameters.values(), key=lambda x: x.kind)  # **kwargs stay last
    forward.__signature__ = signature.replace(parameters=ordered)
    copied_names = ("__module__", "__doc__", "__qualname__")
    attributes = {name: getattr(original_class, name) for name in copied_names}
    # Trainer passes num_items_in_batch because of accepts_loss_kwargs.
    attributes.update(forward=forward, accepts_loss_kwargs=True, _without_smile=original_class)
    return type(original_class.__name__, (original_class,), attributes)


def undo(model: nn.Module) -> nn.Module:
    """Undo `use_smile`, if it was called on the model. Returns the model."""
    unwrapped = unwrap_model(model)
    # The class lacks this attribute if the model has no objective or FSDP has added a subclass.
    original_class = type(unwrapped).__dict__.get("_without_smile")
    if unwrapped.__dict__.pop("_smile", None) is not None:
        unwatch_model(unwrapped)
    if original_class is not None:
        unwrapped.__class__ = original_class
        # A forward that a library has set later still reads `_smile_forwards`: keep them for it.
        if "forward" not in vars(unwrapped):
            *unwrapped._smile_forwards, set_forward = unwrapped._smile_forwards
            if set_forward is not None:
                unwrapped.forward = set_forward
    return model


def last_parts(model: nn.Module) -> dict[str, Tensor]:
    """Return each objective's unweighted value in the last step, by name; {} before the first step.

    Values are detached means over tokens. The model's auxiliary losses, such as `aux_loss`, are
    included under their names. Raises ValueError for a model without an objective.
    """
    settings = getattr(unwrap_model(model), "_smile", None)
    if settings is None:
        raise ValueError(f"{type(model).__name__} has no objective; call use_smile on it")
    return settings.parts


def _forward(model, settings: _Settings, inner_forward: Callable, args: tuple, kwargs: dict) -> Any:
    """Run `inner_forward`, the model's original forward; return its output with the new loss."""
    inputs = _named_inputs(model, settings.argument_names, args, kwargs)
    keep_logits = inputs.pop("keep_logits", None)
    in_training = model.training and torch.is_grad_enabled()
    if inputs.get("labels") is None and inputs.get("shift_labels") is None:
        if in_training:
            raise ValueError(
                f"{type(model).__name__} is trained without labels, and another loss is computed "
                f"from its output (label smoothing, compute_loss_func), {REMEDY}"
            )
        for name in ("labels", "shift_labels", *BATCH_KEYS):
            inputs.pop(name, None)
        return Call(model).run(inner_forward, inputs)
    num_items_in_batch = inputs.pop("num_items_in_batch", None)
    # Only SFTTrainer before TRL 1.15 passes both of these arguments.
    from_sft_trainer = "use_cache" in kwargs and num_items_in_batch is not None
    head = _choose_head(model, settings, keep_logits, from_sft_trainer)
    return_dict = inputs.pop("return_dict", None)
    inputs["return_dict"] = True
    targets = Targets(model, settings.objective, inputs).set_segments()
    _add_inputs(model, settings, targets)
    if head is None:
        output = Call(model).run(inner_forward, targets.inputs)
        result = settings.objective(*targets.align(output_logits(model, output)))
    else:
        output, result = _run_from_hidden(model, settings, inner_forward, targets, head)
    auxiliary_loss, auxiliary_parts = auxiliary_losses(model, output)
    loss = total_loss(result, num_items_in_batch, auxiliary_loss)
    settings.parts = {**result.parts, **auxiliary_parts}
    fields = {**output, "loss": loss}
    if head is not None:
        del fields["logits"]
    if in_training:
        fields = refuse_other_losses(model, fields, loss)
    output = type(output)(**fields)
    return_dict = model.config.return_dict if return_dict is None else return_dict
    return output if return_dict else output.to_tuple()


def _named_inputs(model, names: list[str], args: tuple, kwargs: dict) -> dict:
    """Return the arguments of a forward by name. names: those of the positional ones, in order.

    Raises ValueError if SFTTrainer of TRL will compute the loss itself.
    """
    positional = dict(zip(names, args))
    if repeated := positional.keys() & kwargs.keys():
        raise TypeError(
            f"forward() got multiple values for {', '.join(sorted(repeated))}; give one"
        )
    inputs = {**positional, **kwargs}
    if inputs.get("ignore_index", IGNORE_INDEX) != IGNORE_INDEX:
        raise ValueError("ignore_index is not supported: give tokens without a label -100")
    if inputs.get("fused_lm_head"):
        raise ValueError(
            f"{type(model).__name__}: SFTTrainer of TRL uses its own loss (fused_lm_head), {REMEDY}"
        )
    return inputs


def _choose_head(model, settings: _Settings, keep_logits, from_sft_trainer: bool):
    """Return the `LinearHead` for the fused linear loss, or None for the loss from logits."""
    from_hidden = settings.from_hidden and model.training
    from_hidden = from_hidden if keep_logits is None else not keep_logits
    head = linear_head(model) if from_hidden else None
    if from_hidden and head is None and not torch.compiler.is_compiling():
        # The head was changed after `use_smile`: by a hook, DoRA or ZeRO-3.
        _warn_of_logits(model, settings)
    if head is not None and keep_logits is None and from_sft_trainer:
        raise ValueError(
            f"{type(model).__name__}: SFTTrainer of TRL reads logits, but from_hidden=True has "
            "none; use class Mine(SmileLossMixin, SFTTrainer) of smile.hf, or from_hidden=False"
        )
    return head


def _add_inputs(model, settings: _Settings, targets: Targets) -> None:
    """Add what the model needs to `targets.inputs`.

    Raises ValueError if texts of a row see each other.
    """
    inputs = targets.inputs
    labels = targets.original_labels
    texts = targets.texts
    is_packed = texts is not None and "kwargs" in settings.argument_names
    if is_packed or "use_cache" in settings.argument_names:
        inputs["use_cache"] = False  # with a cache, texts of a row see each other in some models
    add_decoder_inputs(model, labels, inputs)
    # Only a model that needs labels for its attention mask gets labels: every model that gets
    # labels also computes its own loss.
    add_labels_for_mask(model, labels, inputs)
    needs_separation = texts is not None and settings.objective.weights.keys() != {"mle"}
    # The check reads values of tensors, which do not exist during compilation.
    if needs_separation and not torch.compiler.is_compiling():
        from smile.hf.packing_check import refuse_leaks

        refuse_leaks(model, inputs, texts)


def _warn_of_logits(model: nn.Module, settings: _Settings) -> None:
    """Warn, once per model, that `from_hidden` is not possible and all logits are computed."""
    if not settings.is_warned:
        warnings.warn(
            f"{type(model).__name__} is trained from logits: smile.hf.head_table lacks its class "
            "or kind of head, or the head was changed",
            stacklevel=3,
        )
    settings.is_warned = True


def _run_from_hidden(
    model, settings: _Settings, inner_forward: Callable, targets: Targets, head: LinearHead
) -> tuple[dict, ObjectiveOutput]:
    """Return the model's output with only the last position's logits, and the objective's result.

    A hook on the head computes the objective from the head's input. At that moment FSDP has
    gathered the head's weights. Then the hook passes only the last position on to the head.
    """
    results = []

    def replace_input(states):
        # accelerate moves the states to the head's device only in the head's forward, after this.
        states = states.to(head.module.weight.device)
        results.append(head.compute_objective(settings.objective, targets.align(states)))
        return states[:, -1:].detach()

    watch_module(head.module)
    call = Call(model, head.module, replace_input)
    output = call.run(inner_forward, targets.inputs)
    last_logits = output_logits(model, output).detach()
    device = last_logits.device
    if not results:
        raise ValueError(
            f"{type(model).__name__}: a forward that was set on the model does not call its "
            "language head; use_smile needs from_hidden=False for it"
        )
    loss, parts, tokens = results[-1]
    # accelerate moves the output of a model on several devices to the input's device.
    loss = loss.to(device)
    parts = {key: part.to(device) for key, part in parts.items()}
    if torch.compiler.is_compiling() or not settings.head_is_checked:
        error = (
            f"{type(model).__name__} changes the logits of its language head; use_smile needs "
            "from_hidden=False for it"
        )
        changed = head.changed_rows(last_logits, call.head_output.detach().to(device))
        loss = refuse(changed.unsqueeze(0), [error], loss)
        settings.head_is_checked = not torch.compiler.is_compiling()
    return output, ObjectiveOutput(loss, parts, tokens.to(device))


def total_loss(
    result: ObjectiveOutput, num_items_in_batch, auxiliary_loss: Optional[Tensor]
) -> Tensor:
    """Return the loss to minimise: the objective's plus the auxiliary loss, if any.

    num_items_in_batch: if given, the objective's sum over tokens is divided by this number, not by
    the number of tokens in the batch.
    """
    loss = result.loss
    if num_items_in_batch is not None:
        if isinstance(num_items_in_batch, Tensor):  # Trainer puts it on the model's first device
            num_items_in_batch = num_items_in_batch.to(loss.device)
        loss = loss * result.tokens / num_items_in_batch
    return loss if auxiliary_loss is None else loss + auxiliary_loss.to(loss.device)


def unwrap_model(model: nn.Module) -> nn.Module:
    """Return the transformers model without wrappers. Raises ValueError if there is none."""
    return unwrap_generative(model._modules.get("_orig_mod", model))


def to_objective(objective: ObjectiveLike) -> Objective:
    """Return the objective, or build it from a spec. None gives SMILE with first-token MLE.

    Raises ValueError if the objective's ignore_index is not IGNORE_INDEX.
    """
    if not isinstance(objective, Objective):
        objective = Objective("smile" if objective is None else objective)
    if objective.ignore_index != IGNORE_INDEX:
        raise ValueError(
            f"ignore_index is {objective.ignore_index}, but labels of transformers use "
            f"{IGNORE_INDEX}; give Objective(..., ignore_index={IGNORE_INDEX})"
        )
    return objective
