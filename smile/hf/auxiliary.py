"""Computes the auxiliary losses that a transformers model adds to the cross-entropy of labels.

Most of them are losses of routers in mixtures of experts. Most models return their router losses
when they are called without labels, but do not multiply them by their weights. This module does.
"""

from collections.abc import Mapping
from typing import Optional

import torch
from torch import Tensor, nn

from smile.hf.head_table import class_of, needs_labels_for_mask, value_of, z_loss_weight

# The name of each router loss in a model's output, and the configuration key of its weight. JetMoe
# calls the weight of its only router loss aux_loss_coef.
ROUTER_LOSSES = {
    "aux_loss": "router_aux_loss_coef",
    "encoder_aux_loss": "router_aux_loss_coef",
    "decoder_aux_loss": "router_aux_loss_coef",
    "encoder_z_loss": "router_z_loss_coef",
    "decoder_z_loss": "router_z_loss_coef",
}
NO_ROUTER_LOSS = ("Llama4ForCausalLM",)  # has a router_aux_loss_coef, but no such loss
ROUTER_LOGITS = ("router_logits", "encoder_router_logits", "decoder_router_logits")


def auxiliary_losses(
    model: nn.Module, output: Mapping
) -> tuple[Optional[Tensor], dict[str, Tensor]]:
    """Return the sum of auxiliary losses (None if there are none), and its parts by name.

    output: the output of the model, which was called without labels, so that its "loss", if any, is
    an auxiliary loss. A model that `needs_labels_for_mask` was called with labels, and its "loss"
    is ignored. The sum is on the device of the logits. Parts are detached, and not multiplied by
    their weights. Raises ValueError for a model that computes its router losses only with labels,
    and for an auxiliary loss that is not a single number.
    """
    parts = {}
    weighted = []

    def add(name, weight, value):
        if value.numel() != 1:
            raise ValueError(
                f"{type(model).__name__}: {name} is {tuple(value.shape)}; it must be one number"
            )
        parts[name] = value.detach()
        weighted.append(weight * value)

    for name, key in ROUTER_LOSSES.items():
        weight = value_of(model, key, value_of(model, "aux_loss_coef"))
        if weight is not None and output.get(name) is not None:
            # The value is the int 0 if the model has no routers.
            add(name, weight, torch.as_tensor(output[name]))
    has_router = any(output.get(name) is not None for name in ROUTER_LOGITS)
    has_router_loss = class_of(model).__name__ not in NO_ROUTER_LOSS
    if has_router and not parts and has_router_loss and value_of(model, "router_aux_loss_coef"):
        raise ValueError(
            f"{type(model).__name__} computes its router losses only with labels; use_smile needs "
            "output_router_logits=False for it"
        )
    if z_weight := z_loss_weight(model):
        add("z_loss", z_weight, output["logits"].logsumexp(-1).pow(2).mean())
    if output.get("loss") is not None and not needs_labels_for_mask(model):
        add("own_loss", 1.0, output["loss"])
    if not parts:
        return None, {}
    device = output["logits"].device
    return torch.stack([loss.to(device).reshape(()) for loss in weighted]).sum(), parts
