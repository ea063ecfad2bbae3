"""The auxiliary losses that a model of transformers adds to the cross-entropy of its labels.

Routers of mixtures of experts have such losses. Without labels, outputs have them unweighted.
"""

from collections.abc import Mapping
from typing import Optional

import torch
from torch import Tensor, nn

from smile.hf.head_table import class_of, masks_by_labels, value_of, z_loss_weight

# Names of losses in outputs, each with possible configuration keys of its weight.
ROUTERS = {
    "aux_loss": ("router_aux_loss_coef", "aux_loss_coef"),
    "encoder_aux_loss": ("router_aux_loss_coef",),
    "decoder_aux_loss": ("router_aux_loss_coef",),
    "encoder_z_loss": ("router_z_loss_coef",),
    "decoder_z_loss": ("router_z_loss_coef",),
}
NO_ROUTER_LOSS = ("Llama4ForCausalLM",)  # has a router_aux_loss_coef, but no such loss
ROUTER_LOGITS = ("router_logits", "encoder_router_logits", "decoder_router_logits")


def auxiliary_losses(
    model: nn.Module, output: Mapping
) -> tuple[Optional[Tensor], dict[str, Tensor]]:
    """Return the sum of auxiliary losses (None if there are none), and its parts by name.

    output: that of the model without labels; its "loss" is then an auxiliary loss. Parts are
    detached scalars without their weights. Raises ValueError for a model that computes its router
    losses only with labels.
    """
    weighted: list[Tensor] = []
    parts: dict[str, Tensor] = {}

    def add(name: str, weight: float, value) -> None:
        value = torch.as_tensor(value)  # the number 0 if no layer has a router
        weighted.append(weight * value)
        parts[name] = value.detach()

    for name, weights in ROUTERS.items():
        values = [value_of(model, weight) for weight in weights]
        values = [value for value in values if value is not None]
        if values and output.get(name) is not None:
            add(name, values[0], output[name])
    has_router = any(output.get(name) is not None for name in ROUTER_LOGITS)
    has_loss = class_of(model).__name__ not in NO_ROUTER_LOSS
    if has_router and not parts and has_loss and value_of(model, "router_aux_loss_coef"):
        raise ValueError(
            f"{type(model).__name__} computes its router losses only with labels; use_smile needs "
            "output_router_logits=False for it"
        )
    if z_weight := z_loss_weight(model):
        add("z_loss", z_weight, output["logits"].logsumexp(dim=-1).pow(2).mean())
    if output.get("loss") is not None and not masks_by_labels(model):
        add("own_loss", 1.0, output["loss"])
    if not weighted:
        return None, parts
    device = weighted[0].device
    return torch.stack([loss.to(device).flatten()[0] for loss in weighted]).sum(), parts
