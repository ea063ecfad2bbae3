"""Reads the language head of a transformers model for the fused linear loss.

This module imports neither transformers nor PEFT. It recognises their modules by attributes.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor, nn

from smile.head import Transform
from smile.hf.head_table import head_row, needs_labels_for_mask, value_of, z_loss_weight
from smile.hf.packed import AlignedTargets
from smile.objective import Objective, ObjectiveOutput


class LinearHead(NamedTuple):
    """A linear head, and how the model changes the head's logits.

    module: a linear layer. transform: scale and soft cap of logits. bias: (V,), which the model
    adds to the output of `module`, or None. vocabulary: the number of logits that the model keeps;
    None for all.
    """

    module: nn.Module
    transform: Transform
    bias: Optional[Tensor]
    vocabulary: Optional[int]

    def changed_rows(self, model_logits: Tensor, head_logits: Tensor) -> Tensor:
        """Return bool (B,): rows whose logits differ from what `head_table.HEADS` states.

        model_logits: the model's output, (B, N, V). head_logits: the head's output. The
        tolerance is the rounding of a few operations. It is 0 for a head without transform and bias
        in a program that is not compiled.
        """
        expected = head_logits.to(model_logits.dtype, copy=True)
        if self.bias is not None:
            expected += self.bias.to(expected)
        # `__call__` is named, because Dynamo of torch 2.8 cannot trace the call of a named tuple.
        expected = Transform.__call__(self.transform, expected)[0][..., : self.vocabulary]
        if expected.shape != model_logits.shape:
            return torch.ones(len(model_logits), dtype=torch.bool, device=model_logits.device)
        tolerance = 4 * max(torch.finfo(x.dtype).eps for x in (model_logits, head_logits))
        is_identity = self.transform == Transform() and self.bias is None
        if is_identity and not torch.compiler.is_compiling():
            tolerance = 0
        same = torch.isclose(model_logits, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
        return ~same.flatten(1).all(1)

    def compute_objective(self, objective: Objective, targets: AlignedTargets) -> ObjectiveOutput:
        """Compute the objective. The predictions of `targets` are the head's input (B, N, D)."""
        weight = self.module.weight
        bias = self.module.bias
        if self.bias is not None:
            extra_bias = self.bias.to(weight)
            bias = extra_bias if bias is None else bias + extra_bias
        if self.vocabulary is not None:
            weight = weight[: self.vocabulary]
            bias = None if bias is None else bias[: self.vocabulary]
        return objective.from_hidden(
            targets.predictions,
            weight,
            bias,
            targets.labels,
            targets.segments,
            targets.weights,
            scale=self.transform.scale,
            softcap=self.transform.softcap,
        )


def linear_head(model: nn.Module) -> Optional[LinearHead]:
    """Return the head, or None if the objective has to be computed from logits.

    Logits are needed for a model that is not in `smile.hf.head_table`, has a z-loss or needs labels
    for its attention mask, and for a head that is not linear, was changed, has an adapter or is
    partitioned by DeepSpeed ZeRO-3.
    """
    owner, head = _find_head(model)
    if owner is None or head_row(model) is None:
        return None
    row = head_row(owner)
    if row is None or z_loss_weight(model) or needs_labels_for_mask(model):
        return None
    if not _is_plain_linear(head) or hasattr(head.weight, "ds_id"):
        return None
    scale = value_of(owner, row.scale, 1.0) / value_of(owner, row.divisor, 1.0)
    bias = value_of(owner, row.bias)
    return LinearHead(
        module=head,
        transform=Transform(scale, value_of(owner, row.softcap)),
        bias=None if bias is None else bias.flatten(),
        vocabulary=value_of(owner, row.vocabulary),
    )


def language_head(model: nn.Module) -> nn.Module:
    """Return the layer that computes logits. Raises ValueError if it is not linear or not found."""
    head = _find_head(model)[1]
    # A layer that PEFT has adapted has the original layer as its base_layer.
    if not isinstance(getattr(head, "base_layer", head), nn.Linear):
        raise ValueError(f"{type(model).__name__} has no linear language head")
    return head


def _find_head(model: nn.Module) -> tuple[Optional[nn.Module], Optional[nn.Module]]:
    """Return (owner, head): the model or submodule that calls the language head, and the head."""
    for owner in (*model.children(), model):
        head = owner.get_output_embeddings() if hasattr(owner, "get_output_embeddings") else None
        if head is not None:
            return owner, _active_head(head)
    return None, None


def _active_head(head: nn.Module) -> nn.Module:
    """Return the copy of the head that is in use, if PEFT's `modules_to_save` has copied it."""
    if not (hasattr(head, "modules_to_save") and hasattr(head, "original_module")):
        return head
    if head.disable_adapters or not head.active_adapters:
        return head.original_module
    return head.modules_to_save[head.active_adapters[0]]


def _is_plain_linear(head: Optional[nn.Module]) -> bool:
    """Return whether the head is certain to compute hidden @ weight.T + bias.

    Returns False for a subclass of nn.Linear with its own forward, for a forward that was set on
    the head, and for a hook that neither smile.hf nor torch.distributed has defined. The forward
    that accelerate sets to move tensors is allowed.
    """
    if not (isinstance(head, nn.Linear) and type(head).forward is nn.Linear.forward):
        return False
    if torch.compiler.is_compiling():  # Dynamo cannot read hooks; `changed_rows` checks
        return True
    hooks = {**head._forward_pre_hooks, **head._forward_hooks}
    for hook in {**hooks, **head._backward_pre_hooks, **head._backward_hooks}.values():
        function = getattr(hook, "func", hook)  # a functools.partial has the attribute func
        module = getattr(function, "__module__", None) or ""
        if not module.startswith(("torch.distributed", "smile.hf")):
            return False
    moved_by_accelerate = type(getattr(head, "_hf_hook", None)).__name__ == "AlignDevicesHook"
    return moved_by_accelerate or "forward" not in vars(head)
