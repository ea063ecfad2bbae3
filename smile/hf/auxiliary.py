"""The losses that a model of transformers adds to the cross-entropy of its labels.

Routers of experts have such losses. Outputs have them without labels too, but unweighted.
"""

from collections.abc import Mapping
from typing import Optional

import torch
from torch import Tensor, nn

from smile.hf.head_table import class_of, masks_by_labels, value_of, z_loss_weight

# Losses by their names in outputs, with the names of their weights.
ROUTERS = {
    "aux_loss": ("router_aux_loss_coef", "aux_loss_coef"),
    "encoder_aux_loss": ("router_aux_loss_coef",),
    "decoder_aux_loss": ("router_aux_loss_coef",),
    "encoder_z_loss": ("router_z_loss_coef",),
    "decoder_z_loss": ("router_z_loss_coef",),
}
NO_ROUTER_LOSS = ("Llama4ForCausalLM",)  # has the weight of one in its configuration alone
ROUTER_LOGITS = ("router_logits", "encoder_router_logits", "decoder_router_logits")


def auxiliary(model: nn.Module, output: Mapping) -> tuple[Optional[Tensor], dict[str, Tensor]]:
    """What to add to the objective, None if nothing, and its parts by name.

    output: the model's without labels, so that a loss in it is an additional one. Parts are
    detached scalars without their weights. Raises ValueError for a model that computes the losses
    of its routers only with labels.
    """
    weighted: list[Tensor] = []
    parts: dict[str, Tensor] = {}

    def add(name: str, weight: float, value) -> None:
        value = torch.as_tensor(value)  # 0 where no layer has a router
        weighted.append(weight * value)
        parts[name] = value.detach()

    for name, weights in ROUTERS.items():
        found = [value_of(model, weight) for weight in weights]
        found = [weight for weight in found if weight is not None]
        if found and output.get(name) is not None:
            add(name, found[0], output[name])
    routed = any(output.get(name) is not None for name in ROUTER_LOGITS)
    has_loss = class_of(model).__name__ not in NO_ROUTER_LOSS
    if routed and not parts and has_loss and value_of(model, "router_aux_loss_coef"):
        raise ValueError(
            f"{type(model).__name__} has the losses of its routers only where it has labels; "
            "use_smile needs output_router_logits=False for it"
        )
    if z_weight := z_loss_weight(model):
        add("z_loss", z_weight, output["logits"].logsumexp(dim=-1).pow(2).mean())
    if output.get("loss") is not None and not masks_by_labels(model):
        add("own_loss", 1.0, output["loss"])
    if not weighted:
        return None, parts
    device = weighted[0].device
    return torch.stack([each.to(device).flatten()[0] for each in weighted]).sum(), parts
