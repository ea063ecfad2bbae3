"""Raises ValueError if a model of `use_smile` is about to be trained with another loss.

Hooks on decoder and head raise ValueError if these modules run in training outside of the model's
forward. Hooks on the forward's output raise ValueError in the backward pass of another loss.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import Tensor, nn

REMEDY = (
    "so that the objective of use_smile is not trained; use class Mine(SmileLossMixin, "
    'YourTrainer) of smile.hf (Liger: liger_kernel_config={"fused_linear_cross_entropy": False}), '
    "or undo(model) for the other loss"
)
# Fields of an output from which another loss could be computed.
STATES = ("logits", "hidden_states", "decoder_hidden_states", "last_hidden_state")


@dataclass(eq=False)
class Call:
    """A running call of a model's forward.

    head: the language head whose input is replaced, or None. replace_input: maps the head's input
    to the tensor that the head gets instead. head_output: the head's last output.
    """

    model: nn.Module
    head: Optional[nn.Module] = None
    replace_input: Optional[Callable[[Tensor], Tensor]] = None
    head_output: Optional[Tensor] = None

    def run(self, inner_forward: Callable, inputs: dict) -> Any:
        """Return `inner_forward(**inputs)`. While it runs, hooks find this call in `_CALLS`."""
        _CALLS.stack.append(self)
        try:
            return inner_forward(**inputs)
        finally:
            _CALLS.stack.pop()


class _Calls(threading.local):
    """The forwards that are running in this thread. The innermost one is last."""

    def __init__(self):
        self.stack: list[Call] = []


_CALLS = _Calls()
# Autograd's ids of the last backward passes that included an objective, in all threads.
_BACKWARDS: deque[int] = deque(maxlen=8)


def is_running(model: nn.Module) -> bool:
    """Return whether this thread is inside a forward of the model."""
    return any(call.model is model for call in _CALLS.stack)


def _pre_forward_hook(module: nn.Module, args: tuple) -> Optional[tuple]:
    """Replace the input of a running call's head; raise ValueError for a run outside of a forward.

    module: a decoder or head that is about to run. Return None if the input is not replaced.
    """
    for call in _CALLS.stack:
        if call.head is module:
            return (call.replace_input(args[0]), *args[1:])
    in_training = module.training and torch.is_grad_enabled()
    # Activation checkpointing runs decoder and head again in the objective's backward pass, which
    # is allowed.
    is_outside = in_training and not _CALLS.stack
    if is_outside and torch._C._current_graph_task_id() not in _BACKWARDS:
        raise ValueError(
            f"{type(module).__name__} was run outside of its model's forward, {REMEDY}"
        )
    return None


def _forward_hook(head: nn.Module, _, logits: Tensor) -> None:
    """Store the head's output in the running call that replaced the head's input."""
    for call in _CALLS.stack:
        if call.head is head:
            call.head_output = logits


def watch_decoder_and_head(model: nn.Module) -> None:
    """Make decoder and head, frozen or not, raise ValueError if they run for another loss."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    for module in (_decoder_of(model), head):
        if isinstance(module, nn.Module):
            watch_module(module)


def watch_module(module: nn.Module) -> None:
    """Register the hooks on decoder or head, unless they are registered already."""
    # The hooks are copied to a list, because Dynamo of torch 2.8 needs a list.
    if _pre_forward_hook not in [*module._forward_pre_hooks.values()]:
        module.register_forward_pre_hook(_pre_forward_hook)
        module.register_forward_hook(_forward_hook)


def unwatch_model(model: nn.Module) -> None:
    """Remove the hooks from all modules of the model."""
    for module in model.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key, hook in [*hooks.items()]:
                if hook in (_pre_forward_hook, _forward_hook):
                    del hooks[key]


def _decoder_of(model: nn.Module) -> Optional[nn.Module]:
    """Return the module that computes the head's hidden states, or None if it is not found.

    Return the innermost decoder, because encoder-decoder models call encoder and decoder directly,
    not the module around both.
    """
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    if not isinstance(decoder, nn.Module) or decoder is model:
        decoder = getattr(model, "base_model", model)
    while isinstance(getattr(decoder, "decoder", None), nn.Module):
        decoder = decoder.decoder
    return None if decoder is model else decoder


def output_logits(model: nn.Module, output: Any) -> Tensor:
    """Return the logits (B, N, V) of an output. Raises ValueError if it has none."""
    logits = output.get("logits") if isinstance(output, dict) else None
    if not isinstance(logits, Tensor) or logits.dim() != 3:
        raise ValueError(
            f"{type(model).__name__}: a forward that was set on the model returns no logits, "
            f"{REMEDY}"
        )
    return logits


def refuse_other_losses(model: nn.Module, fields: dict, loss: Tensor) -> dict:
    """Return the fields of a training output with `loss`, and watch gradients of the other fields.

    If logits or hidden states get a gradient before `loss` does, another loss is trained, and the
    backward pass raises ValueError. Adding a term to `loss` is allowed: autograd runs in the
    reverse order of the forward pass, and `loss` is created last, so that its gradient comes first.
    In a compiled program, logits and hidden states are detached instead, because a compiled
    backward pass runs for all outputs.
    """
    is_compiling = torch.compiler.is_compiling()
    name = type(model).__name__
    loss_gradients = []

    def record_loss_gradient(gradient):
        loss_gradients.append(gradient)
        _BACKWARDS.append(torch._C._current_graph_task_id())

    def check_loss_gradient(_):
        if not loss_gradients:
            raise ValueError(
                f"{name}: another loss was computed from its logits or hidden states, {REMEDY}"
            )

    def watch_state(state):
        if isinstance(state, (tuple, list)):
            return type(state)([watch_state(item) for item in state])
        if not (isinstance(state, Tensor) and state.requires_grad):
            return state
        if is_compiling:
            return state.detach()
        # The hook is on a view, so that the objective's own gradient does not call it.
        state = state.view_as(state)
        state.register_hook(check_loss_gradient)
        return state

    states = {key: watch_state(fields[key]) for key in STATES if fields.get(key) is not None}
    if loss.requires_grad and not is_compiling:
        loss = loss.clone()
        loss.register_hook(record_loss_gradient)
    return {**fields, **states, "loss": loss}
