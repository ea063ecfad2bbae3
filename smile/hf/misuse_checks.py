"""That no trainer goes past the objective: one line in the first step instead of another loss.

A forward can be overlooked in three ways. The decoder or the head is run by somebody else: a hook
on each asks whether a forward of ours is under way. The labels are kept from it: it is then refused
in training. Or logits and hidden states are taken from its output: their gradient is refused where
the loss has none.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import Tensor, nn

WAYS = "use class MyTrainer(SmileLossMixin, Trainer) of smile.hf, or undo(model) for the other loss"
OF_TRL = (
    "so that the objective of use_smile is not trained; for SFTTrainer use class SmileSFTTrainer("
    "SmileLossMixin, SFTTrainer) of smile.hf, or undo(model) for the other loss"
)
# Of an output, what another loss could be made of.
STATES = ("logits", "hidden_states", "decoder_hidden_states", "last_hidden_state")


@dataclass(eq=False)
class Running:
    """A call of the forward of a model that is under way.

    head: the language head whose input is wanted, or None; take: a function of that input, which
    returns what the head is given instead, in a tuple; seen: the head's output.
    """

    model: nn.Module
    head: Optional[nn.Module] = None
    take: Optional[Callable] = None
    seen: Optional[Tensor] = None


class Calls(threading.local):
    """Those that are under way of a model and its replicas, in each thread its own.

    model: a weak reference, or None in a part that was pickled alone. backwards: the last of
    autograd's in which the objective had a gradient, of all threads.
    """

    def __init__(self, model: Optional[weakref.ref], backwards: deque):
        self.running: list[Running] = []
        self.model, self.backwards = model, backwards

    @classmethod
    def none(cls, model: Optional[nn.Module] = None) -> "Calls":
        return cls(None if model is None else weakref.ref(model), deque(maxlen=8))

    def __reduce__(self) -> tuple:
        return Calls.none, ()

    def __deepcopy__(self, memo: dict) -> "Calls":
        """A copy of the model has none under way; one of a part alone is run in the model, as that
        which PEFT makes of a head to train."""
        twin = memo.get(id(self.model())) if self.model else None
        return self if twin is None else Calls.none(twin)

    def of(self, model: nn.Module) -> bool:
        return any(call.model is model for call in self.running)

    def run(self, call: Running, below: Callable, given: dict) -> Any:
        self.running.append(call)
        try:
            return below(**given)
        finally:
            if torch.compiler.is_compiling():
                self.running.pop()  # Dynamo of torch 2.8 knows no remove
            else:
                self.running.remove(call)


class _RunOutside:
    """A hook before a part of the model that is to be run in a forward of ours."""

    def __init__(self, calls: Calls, name: str):
        self.calls, self.name = calls, name

    def __call__(self, part: nn.Module, _) -> None:
        outside = not self.calls.running and part.training and torch.is_grad_enabled()
        # What is run in the objective's own backward was in its forward, and is made again.
        if outside and torch._C._current_graph_task_id() not in self.calls.backwards:
            raise ValueError(
                f"{self.name} was run outside of its forward, so that the objective "
                f"of use_smile is not trained; {WAYS}"
            )


class _BeforeHead:
    def __init__(self, calls: Calls):
        self.calls = calls

    def __call__(self, head: nn.Module, args: tuple) -> Optional[tuple]:
        for call in self.calls.running:
            if call.head is head:
                return (*call.take(args[0]), *args[1:])


class _AfterHead(_BeforeHead):
    def __call__(self, head: nn.Module, _, logits: Tensor) -> None:
        for call in self.calls.running:
            if call.head is head:
                call.seen = logits


def watch_parts(model: nn.Module, calls: Calls) -> None:
    """Have decoder and head, either of which may be frozen, refuse to be trained outside of the
    model's forward."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    for name, part in (("decoder", decoder_of(model)), ("language head", head)):
        if isinstance(part, nn.Module):
            name = f"{type(model).__name__}: its {name}"
            part.register_forward_pre_hook(_RunOutside(calls, name))


def watch_head(head: nn.Module, calls: Calls) -> None:
    """Have the head's input and output seen, for those calls that want them; once is enough."""
    if head.__dict__.get("_smile_calls") is not calls:
        head._smile_calls = calls
        head.register_forward_pre_hook(_BeforeHead(calls))
        head.register_forward_hook(_AfterHead(calls))


def unwatch(model: nn.Module, calls: Calls) -> None:
    """Take all hooks off again."""
    for module in model.modules():
        if module.__dict__.get("_smile_calls") is calls:  # PEFT's wrapper hands its head's on
            del module._smile_calls
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key, hook in [*hooks.items()]:
                if getattr(hook, "calls", None) is calls:
                    del hooks[key]


def decoder_of(model: nn.Module) -> Optional[nn.Module]:
    """What makes the hidden states that the language head is given, if it is found.

    The innermost: of a model of encoder and decoder around it the two are called, and not itself.
    """
    decoder = _named_decoder(model)
    while isinstance(getattr(decoder, "decoder", None), nn.Module):
        decoder = decoder.decoder
    return decoder


def _named_decoder(model: nn.Module) -> Optional[nn.Module]:
    if hasattr(model, "get_decoder"):
        decoder = model.get_decoder()
        if isinstance(decoder, nn.Module) and decoder is not model:
            return decoder
    base = getattr(model, "base_model", model)
    for owner in (model, base):
        for name in ("language_model", "text_model", "text_decoder", "decoder"):
            if isinstance(getattr(owner, name, None), nn.Module):
                return getattr(owner, name)
    return None if base is model else base


def refuse_other_loss(model: nn.Module, given: dict) -> None:
    """ValueError for a call that asks for another loss than the objective."""
    name = type(model).__name__
    if given.get("fused_lm_head"):
        raise ValueError(
            f"{name}: a trainer of TRL asks for a loss of its own (fused_lm_head), {OF_TRL}"
        )
    if reads_figures(given) and any(_makes_loss(each.function) for each in model._smile_chain):
        raise ValueError(
            f"{name}: a trainer of TRL has set a loss of its own (chunked_nll), {OF_TRL}; "
            'with SFTConfig(loss_type="nll") use_smile trains before TRL 1.15, too'
        )
    labelled = any(given.get(key) is not None for key in ("labels", "shift_labels"))
    if not labelled and model.training and torch.is_grad_enabled():
        raise ValueError(
            f"{name} is trained without labels, so that another loss than the objective of "
            f"use_smile is made of its output (label smoothing, compute_loss_func); {WAYS}"
        )


def reads_figures(given: dict) -> bool:
    """Whether TRL's SFTTrainer before 1.15 calls, to read figures of its loss off the output, or
    another caller that names use_cache and num_items_in_batch. The mixin names keep_logits."""
    of_trainer = "use_cache" in given and given.get("num_items_in_batch") is not None
    return of_trainer and given.get("keep_logits") is None


def _makes_loss(function: Callable) -> bool:
    """Whether a forward that was set takes what a loss is divided by."""
    return "num_items_in_batch" in getattr(function, "__annotations__", ())


class NoLogits:
    """In the place of logits that are not made, for a trainer that would read them."""

    def __getattr__(self, name: str):
        raise AttributeError(
            "use_smile(from_hidden=True) makes no logits, but SFTTrainer of TRL before 1.15 reads "
            "them; use class SmileSFTTrainer(SmileLossMixin, SFTTrainer) of smile.hf, or "
            "from_hidden=False"
        )

    def __getitem__(self, place):
        return self.shape[place]


def logits_of(model: nn.Module, output: Any) -> Tensor:
    """Those of an output; ValueError where what was set as the model's forward returns none."""
    logits = output.get("logits") if isinstance(output, dict) else None
    if not isinstance(logits, Tensor) or logits.dim() != 3:
        raise ValueError(
            f"{type(model).__name__}: the forward that was set on the model returns no logits, so "
            f"that the objective of use_smile cannot be made of them; {WAYS}"
        )
    return logits


def watch_output(model: nn.Module, calls: Calls, fields: dict, loss: Tensor) -> dict:
    """The fields of an output in training, as they may be returned, with `loss`.

    A gradient that comes to those of which another loss could be made is refused, unless `loss` has
    had one before: a term that is added to it is fine. The engine goes backwards in the order of
    making, so `loss` is made anew last.
    """
    gradients = _Gradients(type(model).__name__, calls)
    states = {name: fields[name] for name in STATES if fields.get(name) is not None}
    states = {name: _each(gradients.watch, state) for name, state in states.items()}
    if loss.requires_grad and not torch.compiler.is_compiling():
        loss = loss.clone()
        loss.register_hook(gradients.of_loss)
    return {**fields, **states, "loss": loss}


class _Gradients:
    """What has come back of the loss. It has none of the tensors, which have its methods."""

    def __init__(self, name: str, calls: Calls):
        self.name, self.calls, self.found = name, calls, False

    def watch(self, state: Tensor) -> Tensor:
        if not state.requires_grad:
            return state
        if torch.compiler.is_compiling():
            return state.detach()  # a compiled backward runs for all outputs
        state = state.view_as(state)
        state.register_hook(self.of_state)
        return state

    def of_loss(self, _) -> None:
        self.found = True
        self.calls.backwards.append(torch._C._current_graph_task_id())

    def of_state(self, gradient: Optional[Tensor]) -> None:
        if gradient is not None and not self.found:
            raise ValueError(
                f"{self.name}: a loss was made of its logits or hidden states, so that the "
                f"objective of use_smile is not trained; {WAYS}"
            )


def _each(function: Callable, state: Any) -> Any:
    """What it gives for a tensor, or for those of a tuple; another value as it is."""
    if isinstance(state, (tuple, list)):
        return type(state)([_each(function, each) for each in state])
    return function(state) if isinstance(state, Tensor) else state
