"""A model of transformers whose forward returns the objective's loss."""

import inspect
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional, Union

import torch
from torch import Tensor, nn

from smile.hf.auxiliary import auxiliary
from smile.hf.families import (
    IGNORED,
    cache_by_kwargs,
    generative,
    give_decoder_inputs,
    give_labels,
    needs_use_smile,
    readable_head,
)
from smile.hf.forward_patch import put_on, take_off
from smile.hf.head import from_states, transform_of
from smile.hf.head_table import Known, known_of
from smile.hf.misuse_checks import (
    Calls,
    NoLogits,
    Running,
    logits_of,
    reads_figures,
    refuse_other_loss,
    unwatch,
    watch_head,
    watch_output,
    watch_parts,
)
from smile.hf.packed import OF_A_BATCH, Targets
from smile.hf.packing_check import PLACES, SEEN, keeps_apart
from smile.hf.refusal import refuse
from smile.objective import Objective, ObjectiveOutput

TRIES = 8  # steps in which a model is asked whether it keeps texts of a row apart


@dataclass(eq=False)
class _Settings:
    objective: Objective
    from_hidden: bool
    arguments: list[str]  # of the class's forward, by place
    cache_by_kwargs: bool  # whether that takes use_cache without naming it
    known: Known
    calls: Calls
    parts: dict[str, Tensor] = field(default_factory=dict)  # of the last step
    head_is_last: Any = None  # under these forwards, found so in their first step
    # Whether texts of a row are, as found in each step until it is known, by whether a batch has
    # several rows and by the form of its places.
    apart: dict[tuple, list[Optional[bool]]] = field(default_factory=dict)
    number: int = field(default_factory=itertools.count(1).__next__)  # for `refuse`


def use_smile(
    model: nn.Module,
    objective: Union[Objective, str, Mapping[str, float], None] = None,
    from_hidden: bool = False,
) -> nn.Module:
    """Make `model(**batch, labels=labels)` return the objective's loss; returns the model.

    model: a generative model of transformers, or of PEFT or torch.compile around one, before DDP or
    FSDP. objective: one, or what it is made of, such as {"mle": 0.01, "smile": 0.99}; SMILE with
    first-token MLE if none is given. With `from_hidden`, training takes the loss from what goes
    into the language head, so that logits are never all there; the output has none then. Raises
    ValueError for a model that cannot do so.

    The forward takes besides labels (B, N): `shift_labels` (B, N) in their place, whose n-th is
    what position n predicts; `segments` and `weights`, in step with either, as `smile_loss` has
    them; `num_items_in_batch`, by which the sum over tokens is divided; `keep_logits`, True for the
    loss from logits and False for that from hidden states, whatever `from_hidden` says. Without
    segments a text that `seq_idx`, `cu_seq_lens_q` or `position_ids` begin anew, and in it each
    unbroken run of labels, is a caption. Raises ValueError for a row that seems to be packed
    without any of them, and where the model lets a text of a row change the next. In training a
    call that asks for another loss raises ValueError, as does another loss that is made of the
    output alone.
    """
    given, model = model, _inside(model)
    undo(model)
    objective, known = _checked(objective), known_of(model)
    calls = Calls.none(model)
    if from_hidden:
        watch_head(readable_head(model, known), calls)
    watch_parts(model, calls)
    arguments = list(inspect.signature(type(model).forward).parameters)[1:]
    by_kwargs = cache_by_kwargs(model)
    model._smile = _Settings(objective, from_hidden, arguments, by_kwargs, known, calls)
    # Trainer is to pass num_items_in_batch too.
    put_on(model, _forward, OF_A_BATCH, accepts_loss_kwargs=True)
    return given


def undo(model: nn.Module) -> nn.Module:
    """Give a model its own loss back; one that has it stays as it is. Returns the model."""
    given, model = model, _inside(model)
    settings = model.__dict__.pop("_smile", None)
    if settings is not None:
        unwatch(model, settings.calls)
    take_off(model)
    return given


def last_parts(model: nn.Module) -> dict[str, Tensor]:
    """Each objective's value in the last step, by name: unweighted, a mean over tokens, detached;
    with `aux_loss`, as the model has it, where it adds one. Empty before the first step."""
    settings = getattr(_inside(model), "_smile", None)
    if settings is None:
        raise ValueError(f"{type(model).__name__} has its own loss; call use_smile on it")
    return settings.parts


def compute_loss_func(model: nn.Module, objective: Optional[Objective] = None) -> Callable:
    """The `compute_loss_func` of `Trainer` or `Seq2SeqTrainer` for this model.

    The trainer keeps labels from the model, so an encoder-decoder model needs `decoder_input_ids`
    in its batches: `DataCollatorForSeq2Seq(tokenizer, model=model)` puts them there. Of a batch it
    sees the labels alone: rows that are packed need `use_smile`, and are refused where it shows.
    """
    model, objective = _inside(model), _checked(objective)
    known = known_of(model)
    needs_use_smile(model, known)

    def compute_loss(outputs, labels: Tensor, num_items_in_batch=None) -> Tensor:
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        targets = Targets(model, objective, labels)
        fields = {**outputs, "loss": None} if isinstance(outputs, dict) else {}
        weighted, _ = auxiliary(model, known, fields)
        return _loss(objective(*targets.of(logits)), num_items_in_batch, weighted)

    return compute_loss


def _forward(model: nn.Module, below: Callable, args: tuple, kwargs: dict) -> Any:
    """The model's forward, of which `below` is what it would be without the objective."""
    settings = getattr(model, "_smile", None)
    if settings is None or settings.calls.of(model):
        return below(*args, **kwargs)
    named = dict(zip(settings.arguments, args))
    if twice := named.keys() & kwargs.keys():
        raise TypeError(f"forward() got multiple values for {', '.join(sorted(twice))}; give one")
    given = {**named, **kwargs}
    refuse_other_loss(model, given)
    read = reads_figures(given)
    labels, shift_labels = given.pop("labels", None), given.pop("shift_labels", None)
    segments, weights = given.pop("segments", None), given.pop("weights", None)
    keep_logits = given.pop("keep_logits", None)
    if labels is None and shift_labels is None:
        return settings.calls.run(Running(model), below, given)
    from_hidden = settings.from_hidden and model.training
    from_hidden = from_hidden if keep_logits is None else not keep_logits
    num_items_in_batch = given.pop("num_items_in_batch", None)
    return_dict = given.pop("return_dict", None)
    given["return_dict"] = True
    shifted, labels = shift_labels is not None, labels if shift_labels is None else shift_labels
    objective, batch = settings.objective, (segments, weights, given)
    targets = Targets(model, objective, labels, shifted, *batch, from_hidden=from_hidden)
    packed = targets.rows is not None and settings.cache_by_kwargs
    if packed or "use_cache" in settings.arguments:
        given["use_cache"] = False  # with one, some do not keep texts of a row apart
    give_decoder_inputs(model, labels, given)
    # What is below sees no labels otherwise, so that it computes no loss of its own.
    give_labels(model, settings.known, labels, given)
    by_caption = objective.weights.keys() != {"mle"}
    if by_caption and targets.rows is not None and not torch.compiler.is_compiling():
        _refuse_leaks(model, settings, below, given, targets.rows)
    run = _run_from_hidden if from_hidden else _run
    output, result = run(model, settings, below, given, targets)
    weighted, raw = auxiliary(model, settings.known, output)
    loss = _loss(result, num_items_in_batch, weighted)
    settings.parts = {**result.parts, **raw}
    fields = {**output, "loss": loss}
    if from_hidden:
        del fields["logits"]
        fields.update({"logits": NoLogits()} if read else {})
    if model.training and torch.is_grad_enabled():
        fields = watch_output(model, settings.calls, fields, loss)
    output = type(output)(**fields)
    wants_dict = model.config.return_dict if return_dict is None else return_dict
    return output if wants_dict else output.to_tuple()


def _refuse_leaks(model, settings, below, given, rows: Tensor) -> None:
    """ValueError where a row has several texts, of which the model lets one change the next."""
    if given.get("attention_mask") is not None:
        return  # it can keep them apart
    tensors = [name for name in PLACES if isinstance(given.get(name), Tensor)]
    form = tuple((name, given[name].shape[:-2]) for name in tensors)
    several = len(rows) > 1

    def run(inputs: dict) -> Tensor:
        return logits_of(model, settings.calls.run(Running(model), below, inputs))

    for n in (1, 2):  # by all processes at once, whatever their rows
        found = settings.apart.setdefault((n > 1, form), [])
        if found.count(None) == len(found) < TRIES:
            found.append(keeps_apart(model, run, given, n))
    if settings.apart[several, form][-1] is False and (rows != rows[:, :1]).any():
        settings.apart = {}  # it can be given another attention, and tried again
        raise ValueError(f"{type(model).__name__} {SEEN}")


def _run(model, settings, below, given, targets) -> tuple[dict, ObjectiveOutput]:
    """The output, and the objective's from its logits."""
    output = settings.calls.run(Running(model), below, given)
    return output, settings.objective(*targets.of(logits_of(model, output)))


def _run_from_hidden(model, settings, below, given, targets) -> tuple[dict, ObjectiveOutput]:
    """The output with logits of the last position alone, and the objective's from hidden states.

    The objective is taken in the head's call, where FSDP has the head's weights whole.
    """
    head, transform = readable_head(model, settings.known), transform_of(model, settings.known)
    results = []

    def take(states: Tensor) -> tuple[Tensor]:
        states = states.to(head.weight.device)  # as accelerate does in the head's forward
        results.append(from_states(settings.objective, head, transform, *targets.of(states)))
        return (states[:, -1:].detach(),)

    call = Running(model, head, take)
    watch_head(head, settings.calls)
    output = settings.calls.run(call, below, given)
    last = logits_of(model, output).detach()
    if not results:
        raise ValueError(
            f"{type(model).__name__}: the forward that was set on the model does not call its "
            "language head; use_smile needs from_hidden=False for it"
        )
    result, compiling = _moved(results[-1], last.device), torch.compiler.is_compiling()
    if compiling or settings.head_is_last is not model._smile_chain:
        line = (
            f"{type(model).__name__} changes the logits of its language head; "
            "use_smile needs from_hidden=False for it"
        )
        changed = transform.changed(last, call.seen.detach().to(last.device))
        loss = refuse(changed.unsqueeze(0), [line], result.loss, settings.number)
        result = ObjectiveOutput(loss, result.parts, result.tokens)
        settings.head_is_last = None if compiling else model._smile_chain
    return output, result


def _moved(result: ObjectiveOutput, device: torch.device) -> ObjectiveOutput:
    """To where the output is: accelerate moves that to the input of a model over several."""
    loss, parts, tokens = result
    parts = {name: part.to(device) for name, part in parts.items()}
    return ObjectiveOutput(loss.to(device), parts, tokens.to(device))


def _loss(result: ObjectiveOutput, num_items_in_batch, weighted: Optional[Tensor]) -> Tensor:
    """The objective, and what the model adds to it of itself."""
    loss = result.loss
    if num_items_in_batch is not None:
        if isinstance(num_items_in_batch, Tensor):  # lies where the model begins
            num_items_in_batch = num_items_in_batch.to(loss.device)
        loss = loss * result.tokens / num_items_in_batch
    return loss if weighted is None else loss + weighted.to(loss.device)


def _inside(model: nn.Module) -> nn.Module:
    """The model of transformers in one of PEFT or torch.compile; ValueError for another one."""
    return generative(model._modules.get("_orig_mod", model))


def _checked(objective: Union[Objective, str, Mapping[str, float], None]) -> Objective:
    if not isinstance(objective, Objective):
        objective = Objective() if objective is None else Objective(objective)
    if objective.ignore_index != IGNORED:
        raise ValueError(
            f"ignore_index is {objective.ignore_index}, but {IGNORED} in labels of transformers; "
            f"give Objective(..., ignore_index={IGNORED})"
        )
    return objective
