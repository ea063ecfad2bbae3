"""Reads the language head of a transformers model for the fused linear loss.

transformers and PEFT are not imported: their modules are recognised by attributes.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor, nn

from smile.head import Transform
from smile.hf.head_table import HeadRow, head_row, masks_by_labels, value_of, z_loss_weight
from smile.objective import Objective, ObjectiveOutput


class LinearHead(NamedTuple):
    """A linear head, and what the model does to the head's logits.

    module: a linear layer, or PEFT's LoRA around one. transform: scale and soft cap of logits.
    bias: (V,), added to the module's logits, or None. vocabulary: the number of logits that the
    model keeps; None for all.
    """

    module: nn.Module
    transform: Transform
    bias: Optional[Tensor]
    vocabulary: Optional[int]

    def changed(self, theirs: Tensor, logits: Tensor) -> Tensor:
        """bool (B,): rows in which the model changes logits in another way than the table says.

        theirs: the model's logits; logits: its head's. Without a transform both must be equal bit
        for bit, unless the program is compiled. Otherwise they may differ by the rounding of a few
        operations.
        """
        expected = logits.to(theirs.dtype, copy=True)
        if self.bias is not None:
            expected += self.bias.to(expected)
        # Dynamo of torch 2.8 cannot trace the call of a named tuple.
        expected = Transform.__call__(self.transform, expected)[0][..., : self.vocabulary]
        if expected.shape != theirs.shape:
            return torch.ones(len(theirs), dtype=torch.bool, device=theirs.device)
        plain = self.transform == Transform() and self.bias is None
        exact = plain and not torch.compiler.is_compiling()
        rounding = 0 if exact else 4 * max(torch.finfo(x.dtype).eps for x in (theirs, logits))
        same = torch.isclose(theirs, expected, rtol=rounding, atol=rounding, equal_nan=True)
        return ~same.flatten(1).all(1)

    def objective(
        self,
        objective: Objective,
        hidden: Tensor,
        labels: Tensor,
        segments: Optional[Tensor] = None,
        weights: Optional[Tensor] = None,
    ) -> ObjectiveOutput:
        """The objective of the head's input (B, N, D). Other arguments are as in `Objective`."""
        hidden, weight, bias = _read(self.module, hidden)
        if self.bias is not None:
            added = self.bias.to(weight)
            bias = added if bias is None else bias + added
        if self.vocabulary is not None:
            weight, bias = (x if x is None else x[: self.vocabulary] for x in (weight, bias))
        scale, softcap = self.transform
        return objective.from_hidden(
            hidden, weight, bias, labels, segments, weights, scale=scale, softcap=softcap
        )


def linear_head(model: nn.Module) -> Optional[LinearHead]:
    """The head, if the objective can be computed from its input. None if it needs logits.

    Logits are needed for a class that is not in the table or has a loss on its logits, for a head
    that is not linear or was changed, and for a head that DeepSpeed ZeRO-3 partitions.
    """
    part, head = _output_layer(model)
    row = None if part is None or head_row(model) is None else head_row(part)
    if row is None or z_loss_weight(model) or masks_by_labels(model):
        return None
    if hasattr(getattr(head, "weight", None), "ds_id") or not (_is_linear(head) or _is_lora(head)):
        return None
    bias = value_of(part, row.bias)
    bias = None if bias is None else bias.flatten()
    return LinearHead(head, _transform(part, row), bias, value_of(part, row.vocabulary))


def _transform(model: nn.Module, row: HeadRow) -> Transform:
    scale = value_of(model, row.scale, 1.0) / value_of(model, row.divisor, 1.0)
    return Transform(scale, value_of(model, row.softcap))


def language_head(model: nn.Module) -> nn.Module:
    """The layer that computes logits. Raises ValueError if it is not linear or not found."""
    head = _output_layer(model)[1]
    if _is_linear(head) or _is_lora(head):
        return head
    raise ValueError(f"{type(model).__name__} has no linear language head")


def _output_layer(model: nn.Module) -> tuple[Optional[nn.Module], Optional[nn.Module]]:
    """The language head, preceded by the module that calls it: the model or a part of it."""
    for part in (*model.children(), model):
        head = part.get_output_embeddings() if hasattr(part, "get_output_embeddings") else None
        if head is not None:
            return part, _trained_copy(head)
    return None, None


def _trained_copy(head: nn.Module) -> nn.Module:
    """The head that is in use, if PEFT's `modules_to_save` has copies of it."""
    if not (hasattr(head, "modules_to_save") and hasattr(head, "original_module")):
        return head
    if head.disable_adapters or not head.active_adapters:
        return head.original_module
    return head.modules_to_save[head.active_adapters[0]]


def _is_linear(head: Optional[nn.Module]) -> bool:
    """Whether logits are hidden @ weight.T + bias. A subclass of nn.Linear may compute others."""
    linear = isinstance(head, nn.Linear) and type(head).forward is nn.Linear.forward
    return linear and _is_untouched(head)


def _is_untouched(head: nn.Module) -> bool:
    """Whether no forward was set on the head, and no hook except ours and FSDP's."""
    if torch.compiler.is_compiling():  # Dynamo cannot read hooks; use_smile has read them
        return True
    hooks = (*head._forward_pre_hooks.values(), *head._forward_hooks.values())
    modules = [getattr(getattr(x, "func", x), "__module__", None) or "" for x in hooks]
    moved = type(getattr(head, "_hf_hook", None)).__name__ == "AlignDevicesHook"  # accelerate's
    known = all(x.startswith(("torch.distributed", "smile.hf")) for x in modules)
    return known and ("forward" not in vars(head) or moved)


def _is_lora(head: Optional[nn.Module]) -> bool:
    has_lora = isinstance(getattr(head, "lora_A", None), nn.ModuleDict)  # AdaLoRA has parameters
    if not (has_lora and _is_linear(getattr(head, "base_layer", None)) and _is_untouched(head)):
        return False
    variants = (getattr(head, "use_dora", {}), getattr(head, "lora_variant", {}))
    return not any(variant.get(name) for variant in variants for name in head.active_adapters)


def _read(head: nn.Module, hidden: Tensor) -> tuple[Tensor, Tensor, Optional[Tensor]]:
    """Input, weight and bias of a plain linear layer that is equal to `head`.

    LoRA adds dropout(hidden) @ A.T @ B.T * scaling. The low-rank states dropout(hidden) @ A.T are
    concatenated to the hidden states, and B * scaling to the weight.
    """
    if not hasattr(head, "lora_A"):
        return hidden, head.weight, head.bias
    base = head.base_layer
    if head.disable_adapters or head.merged:
        return hidden, base.weight, base.bias
    states, weights, bias = [hidden], [base.weight], base.bias
    for name in head.active_adapters:
        if name not in head.lora_A:
            continue
        down, up, scaling = head.lora_A[name], head.lora_B[name], head.scaling[name]
        dropped = head.lora_dropout[name](hidden.to(down.weight.dtype))
        states.append(down(dropped).to(hidden.dtype))
        weights.append((up.weight * scaling).to(base.weight.dtype))
        if up.bias is not None:
            bias = up.bias * scaling if bias is None else bias + up.bias * scaling
    return torch.cat(states, 2), torch.cat(weights, 1), bias
