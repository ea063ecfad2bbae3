"""A model of transformers whose forward returns the objective's loss."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Optional

from torch import Tensor, nn

from smile.hf.auxiliary import auxiliary
from smile.hf.families import (
    IGNORED,
    check_from_hidden,
    generative,
    give_decoder_inputs,
    give_labels,
    in_step,
    needs_use_smile,
)
from smile.hf.head import from_hidden as objective_from_hidden
from smile.hf.head import language_head, logits_of
from smile.objective import Objective, ObjectiveOutput


@dataclass
class _Settings:
    objective: Objective
    from_hidden: bool
    own_forward: Optional[Callable]  # that the instance had in place of its class's
    head_is_last: bool = False  # found so in the first step


def use_smile(
    model: nn.Module, objective: Optional[Objective] = None, from_hidden: bool = False
) -> nn.Module:
    """Make `model(**batch, labels=labels)` return the objective's loss; returns the model.

    model: a generative model of transformers, or of PEFT around one, before DDP or FSDP. objective:
    SMILE with first-token MLE if none is given. Where `num_items_in_batch` is passed, the sum over
    tokens is divided by it. With `from_hidden`, training takes the loss from what goes into the
    language head, so that logits are never all there; the output has none then. Raises ValueError
    for a model that cannot do so.
    """
    model = generative(model)
    undo(model)
    objective = _checked(objective)
    if from_hidden:
        check_from_hidden(model)
    # accelerate leaves such a forward behind, for autocast or for devices; it would hide ours.
    model._smile = _Settings(objective, from_hidden, model.__dict__.pop("forward", None))
    # A class rather than an instance's attribute, which copies and replicas of the model would
    # share. Names are kept since checkpoints and Trainer read them.
    original = type(model)
    content = {
        "forward": _forward_with_objective(original.forward),
        "accepts_loss_kwargs": True,  # Trainer is to pass num_items_in_batch
        "_without_smile": original,
        **{name: getattr(original, name) for name in ("__module__", "__qualname__", "__doc__")},
    }
    model.__class__ = type(original.__name__, (original,), content)
    return model


def undo(model: nn.Module) -> nn.Module:
    """Give a model its own loss back; one that has it stays as it is. Returns the model."""
    model = generative(model)
    settings = model.__dict__.pop("_smile", None)
    if settings is not None and settings.own_forward is not None:
        model.__dict__.setdefault("forward", settings.own_forward)
    # Under a class that FSDP put on top ours stays, and does nothing.
    model.__class__ = type(model).__dict__.get("_without_smile", type(model))
    return model


def compute_loss_func(model: nn.Module, objective: Optional[Objective] = None) -> Callable:
    """The `compute_loss_func` of `Trainer` or `Seq2SeqTrainer` for this model.

    The trainer keeps labels from the model, so an encoder-decoder model needs `decoder_input_ids`
    in its batches: `DataCollatorForSeq2Seq(tokenizer, model=model)` puts them there.
    """
    model, objective = needs_use_smile(generative(model)), _checked(objective)

    def compute_loss(outputs, labels: Tensor, num_items_in_batch=None) -> Tensor:
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        result = objective(*in_step(model, logits, labels))
        added = auxiliary(model, outputs, True)[0] if isinstance(outputs, dict) else None
        return _loss(result, num_items_in_batch, added)

    return compute_loss


def _forward_with_objective(original: Callable) -> Callable:
    names = list(inspect.signature(original).parameters)[1:]

    @functools.wraps(original)
    def forward(self, *args, **kwargs):
        settings = self.__dict__.get("_smile")
        theirs = getattr(settings, "own_forward", None) or functools.partial(original, self)
        named = dict(zip(names, args))
        if settings is None or {**named, **kwargs}.get("labels") is None:
            return theirs(*args, **kwargs)
        if twice := named.keys() & kwargs.keys():
            raise TypeError(f"forward() got multiple values for {', '.join(sorted(twice))}")
        kwargs = {**named, **kwargs}
        labels, num_items_in_batch = kwargs.pop("labels"), kwargs.pop("num_items_in_batch", None)
        return_dict = kwargs.pop("return_dict", None)
        kwargs["return_dict"] = True
        if "use_cache" in names:
            kwargs["use_cache"] = False
        give_decoder_inputs(self, labels, kwargs)
        # Other models see no labels, so that they compute no loss of their own.
        sees_labels = give_labels(self, labels, kwargs)
        run = functools.partial(theirs, **kwargs)
        if settings.from_hidden and self.training:
            output, result = _run_from_hidden(self, run, labels, settings)
        else:
            output = run()
            result = settings.objective(
                *in_step(self, output["logits"], labels, kwargs.get("input_ids"))
            )
        added, _ = auxiliary(self, output, sees_labels)
        fields = {**output, "loss": _loss(result, num_items_in_batch, added)}
        if settings.from_hidden and self.training:
            del fields["logits"]
        output = type(output)(**fields)
        wants_dict = self.config.return_dict if return_dict is None else return_dict
        return output if wants_dict else output.to_tuple()

    return forward


def _run_from_hidden(model: nn.Module, run: Callable, labels: Tensor, settings: _Settings):
    """The model's output with logits of the last position alone, and the objective's.

    The objective is taken in the head's call, where FSDP has the head's weights whole.
    """
    head, of_head, results = language_head(model), logits_of(model), []

    def take(_, args):
        hidden, aligned = in_step(model, args[0], labels, run.keywords.get("input_ids"))
        results.append(objective_from_hidden(settings.objective, head, of_head, hidden, aligned))
        return (args[0][:, -1:].detach(), *args[1:])

    def keep(_, args, logits):
        results.append(logits.detach())

    with head.register_forward_pre_hook(take), head.register_forward_hook(keep):
        output = run()
    result, logits = results
    if not settings.head_is_last:
        if not of_head.are(output["logits"].detach(), logits):
            raise ValueError(
                f"{type(model).__name__} changes the logits of its language head; "
                "use_smile needs from_hidden=False for it"
            )
        settings.head_is_last = True
    return output, result


def _loss(result: ObjectiveOutput, num_items_in_batch, added) -> Tensor:
    loss = result.loss
    if num_items_in_batch is not None:
        loss = loss * result.tokens / num_items_in_batch
    return loss if added is None else loss + added.to(loss.device)


def _checked(objective: Optional[Objective]) -> Objective:
    objective = objective or Objective()
    if objective.ignore_index != IGNORED:
        raise ValueError(
            f"ignore_index is {objective.ignore_index}; transformers' labels have -100"
        )
    return objective
