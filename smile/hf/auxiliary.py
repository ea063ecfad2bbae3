"""What a model of transformers adds to its loss that labels have no part in.

Routers of experts have such losses. They are in the model's output when it sees no labels too,
but without the weights with which it would add them.
"""

from collections.abc import Mapping
from typing import Optional

import torch
from torch import Tensor, nn

from smile.hf.head_table import Known

# Losses by their names in outputs, for each the names of its weight.
ROUTERS = {
    "aux_loss": ("router_aux_loss_coef", "aux_loss_coef"),
    "encoder_aux_loss": ("router_aux_loss_coef",),
    "decoder_aux_loss": ("router_aux_loss_coef",),
    "encoder_z_loss": ("router_z_loss_coef",),
    "decoder_z_loss": ("router_z_loss_coef",),
}
ROUTER_LOGITS = ("router_logits", "encoder_router_logits", "decoder_router_logits")


def auxiliary(
    model: nn.Module, known: Known, output: Mapping
) -> tuple[Optional[Tensor], dict[str, Tensor]]:
    """What to add to the objective, None if nothing, and its parts as the model has them.

    output: the model's, which saw no labels, so that a loss in it is of something else. Parts are
    detached scalars by name, without their weights. Raises ValueError for a model that has losses
    of its routers only with labels.
    """
    weighted: list[Tensor] = []
    parts: dict[str, Tensor] = {}

    def add(name: str, weight: float, value) -> None:
        value = torch.as_tensor(value)  # 0 where no layer has a router
        weighted.append(weight * value)
        parts[name] = value.detach()

    for name, weights in ROUTERS.items():
        given = [known.value(model, weight) for weight in weights]
        given = [weight for weight in given if weight is not None]
        if given and output.get(name) is not None:
            add(name, given[0], output[name])
    asked = any(output.get(name) is not None for name in ROUTER_LOGITS)
    if asked and not parts and "router_aux_loss_coef" in known.spoken:
        raise ValueError(
            f"{type(model).__name__} has the losses of its routers only where it has labels; "
            "use_smile needs output_router_logits=False for it"
        )
    if z_weight := known.value(model, "z_loss_coefficient"):
        add("z_loss", z_weight, output["logits"].logsumexp(dim=-1).pow(2).mean())
    if output.get("loss") is not None and not known.masks_by_labels:
        add("own_loss", 1.0, output["loss"])
    if not weighted:
        return None, parts
    device = weighted[0].device
    return torch.stack([each.to(device).flatten()[0] for each in weighted]).sum(), parts
