"""The auxiliary losses that a transformers model adds to the cross-entropy of its labels.

Most are losses of the routers in mixtures of experts. A model that is called without labels returns
its router losses, but does not multiply them by their weights.
"""

from collections.abc import Mapping
from typing import Optional

import torch
from torch import Tensor, nn

from smile.hf.head_table import class_of, needs_labels_for_mask, value_of, z_loss_weight

# The name of each router loss in a model's output, and the configuration keys of its weight.
ROUTER_LOSSES = {
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

    output: of the model without labels, so that its "loss", if any, is an auxiliary loss. Only a
    model that `needs_labels_for_mask` gets labels; its "loss" is not used. Parts are detached
    scalars, not multiplied by their weights. Raises ValueError for a model that computes its router
    losses only with labels.
    """
    weighted: list[Tensor] = []
    parts: dict[str, Tensor] = {}

    def add(name: str, weight: float, value) -> None:
        value = torch.as_tensor(value)  # transformers returns the int 0 without routers
        weighted.append(weight * value)
        parts[name] = value.detach()

    for name, keys in ROUTER_LOSSES.items():
        values = [value_of(model, key) for key in keys]
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
    if output.get("loss") is not None and not needs_labels_for_mask(model):
        add("own_loss", 1.0, output["loss"])
    if not weighted:
        return None, parts
    device = weighted[0].device
    return torch.stack([loss.to(device).flatten()[0] for loss in weighted]).sum(), parts
