"""The language head of a model of transformers: where it is, and how its logits become the model's.

Nothing of transformers or PEFT is imported: their modules are known by what they have.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor, nn

from smile.hf.head_table import CAPS, SCALES, Known
from smile.objective import Objective, ObjectiveOutput


class Transform(NamedTuple):
    """The model's logits are softcap * tanh(scale * (the head's + bias) / softcap).

    Without a softcap they are scale * (the head's + bias). bias: (V,) or None. words: how many
    words of the head the model knows, where there are more for alignment.
    """

    scale: float = 1.0
    softcap: Optional[float] = None
    bias: Optional[Tensor] = None
    words: Optional[int] = None

    def of(self, logits: Tensor) -> Tensor:
        """The model's logits (..., words) of the head's (..., V)."""
        logits = logits if self.bias is None else logits + self.bias.to(logits)
        logits = logits * self.scale
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits[..., : self.words]

    def changed(self, theirs: Tensor, logits: Tensor) -> Tensor:
        """bool (B,): rows in which the model's logits are others than its head's tell.

        Where nothing is done to them they are the same to the bit, unless a compiler rounds; else
        up to the rounding of a few operations.
        """
        expected = self.of(logits.to(theirs.dtype))
        if expected.shape != theirs.shape:
            return torch.ones(len(theirs), dtype=torch.bool, device=theirs.device)
        plain = self.scale == 1.0 and self.softcap is None and self.bias is None
        exact = plain and not torch.compiler.is_compiling()
        rounding = 0 if exact else 4 * max(torch.finfo(x.dtype).eps for x in (theirs, logits))
        same = torch.isclose(theirs, expected, rtol=rounding, atol=rounding, equal_nan=True)
        return ~same.flatten(1).all(1)


def transform_of(model: nn.Module, known: Known) -> Transform:
    """How this model makes its logits of its head's."""
    scale, softcap = 1.0, None
    for name in SCALES:
        scale *= known.value(model, name, 1.0)
    if scaling := known.value(model, "logits_scaling"):
        # Granite divides by it.
        scale *= scaling if "HyperCLOVAX" in type(model).__name__ else 1 / scaling
    for name in CAPS:
        softcap = known.value(model, name, softcap)
    bias = known.value(model, "final_logits_bias")
    words = known.value(model, "unpadded_vocab_size")
    return Transform(scale, softcap, None if bias is None else bias.flatten(), words)


def language_head(model: nn.Module) -> nn.Module:
    """The layer that makes logits, as it is called; ValueError where there is none to be read.

    A linear layer, PEFT's LoRA around one, or the copy that PEFT trains instead of one.
    """
    name = type(model).__name__
    for module in (model, *model.children()):
        if hasattr(module, "get_output_embeddings"):
            head = _trained_copy(module.get_output_embeddings())
            if hasattr(getattr(head, "weight", None), "ds_id"):
                raise ValueError(
                    f"{name} is divided by DeepSpeed ZeRO-3, so that its language head's weight is "
                    "in parts; give from_hidden=False, or use ZeRO-2"
                )
            if _is_linear(head) or _is_lora(head):
                return head
            if head is not None:
                break
    raise ValueError(
        f"{name} has no linear language head that can be read; "
        "use_smile needs from_hidden=False for it"
    )


def _trained_copy(head: Optional[nn.Module]) -> Optional[nn.Module]:
    """Of PEFT's `modules_to_save`, that which runs."""
    if not (hasattr(head, "modules_to_save") and hasattr(head, "original_module")):
        return head
    if head.disable_adapters or not head.active_adapters:
        return head.original_module
    return head.modules_to_save[head.active_adapters[0]]


def _is_linear(head: Optional[nn.Module]) -> bool:
    """Whether logits are hidden @ weight.T + bias: a class of its own may do otherwise."""
    linear = isinstance(head, nn.Linear) and type(head).forward is nn.Linear.forward
    return linear and _is_untouched(head)


def _is_untouched(head: nn.Module) -> bool:
    """Whether nothing was set as its forward, and no hook is on it but ours and those with which
    torch gathers what it has divided."""
    if torch.compiler.is_compiling():  # Dynamo cannot tell; it was looked at before
        return True
    hooks = (*head._forward_pre_hooks.values(), *head._forward_hooks.values())
    functions = (getattr(hook, "func", hook) for hook in hooks if not hasattr(hook, "calls"))
    places = (getattr(function, "__module__", None) or "" for function in functions)
    moved = type(getattr(head, "_hf_hook", None)).__name__ == "AlignDevicesHook"  # accelerate's
    set_on_it = "forward" in vars(head) and not moved
    return not set_on_it and all(x.startswith("torch.distributed") for x in places)


def _is_lora(head: Optional[nn.Module]) -> bool:
    of_modules = isinstance(getattr(head, "lora_A", None), nn.ModuleDict)  # AdaLoRA's are not
    if not (of_modules and _is_linear(getattr(head, "base_layer", None)) and _is_untouched(head)):
        return False
    variants = (getattr(head, "use_dora", {}), getattr(head, "lora_variant", {}))
    return not any(variant.get(name) for variant in variants for name in head.active_adapters)


def from_states(
    objective: Objective,
    head: nn.Module,
    transform: Transform,
    hidden: Tensor,
    labels: Tensor,
    segments: Optional[Tensor] = None,
    weights: Optional[Tensor] = None,
) -> ObjectiveOutput:
    """The objective of hidden states (B, N, D) that go into `head`; the rest is as it has it."""
    hidden, weight, bias = _read(head, hidden)
    if transform.bias is not None:
        beside = transform.bias.to(weight)
        bias = beside if bias is None else bias + beside
    if transform.words is not None:
        weight, bias = weight[: transform.words], None if bias is None else bias[: transform.words]
    scale, softcap = transform.scale, transform.softcap
    return objective.from_hidden(
        hidden, weight, bias, labels, segments, weights, scale=scale, softcap=softcap
    )


def _read(head: nn.Module, hidden: Tensor) -> tuple[Tensor, Tensor, Optional[Tensor]]:
    """States, weight and bias of one linear layer that does what `head` does.

    LoRA adds dropout(hidden) @ A.T @ B.T * scaling. Its states of a few dimensions are put beside
    the others and B beside the weight, so that dropout is drawn as LoRA draws it.
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
        given = head.lora_dropout[name](hidden.to(down.weight.dtype))
        states.append(down(given).to(hidden.dtype))
        weights.append((up.weight * scaling).to(base.weight.dtype))
        if up.bias is not None:
            bias = up.bias * scaling if bias is None else bias + up.bias * scaling
    return torch.cat(states, 2), torch.cat(weights, 1), bias
