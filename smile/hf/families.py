"""What is known of a family of transformers' models: its head, its labels, its decoder's input."""

import inspect
from typing import Optional

from torch import Tensor, nn

IGNORED = -100
# What configurations call the tokens that stand where the features of an image, a video or a sound
# are put.
MEDIA_TOKENS = tuple(
    f"{medium}_token_{kind}" for medium in ("image", "video", "audio") for kind in ("id", "index")
)


def generative(model: nn.Module) -> nn.Module:
    model = model.get_base_model() if hasattr(model, "get_base_model") else model
    known = inspect.signature(type(model).forward).parameters
    if "MaskedLM" in type(model).__name__:
        raise ValueError(f"{type(model).__name__} fills in words; give a model that generates text")
    if not hasattr(model, "config") or "labels" not in known:
        raise ValueError(
            f"{type(model).__name__} takes no labels; give a generative model of transformers, "
            "before DDP, FSDP or torch.compile is around it"
        )
    return model


def language_head(model: nn.Module) -> nn.Linear:
    """The linear layer that makes logits; ValueError where there is none."""
    for module in (model, *model.children()):
        if hasattr(module, "get_output_embeddings"):
            head = module.get_output_embeddings()
            if isinstance(head, nn.Linear):
                return head
    raise ValueError(
        f"{type(model).__name__} has no linear language head that can be read; "
        "use_smile needs from_hidden=False for it"
    )


def without_media(model: nn.Module, labels: Tensor) -> Tensor:
    """Labels that do not score the places of an image, a video or a sound."""
    for name in MEDIA_TOKENS:
        token = getattr(model.config, name, None)
        if token is not None:
            labels = labels.masked_fill(labels == token, IGNORED)
    return labels


def in_step(
    model: nn.Module, predictions: Tensor, labels: Tensor, shifted: bool = False
) -> tuple[Tensor, Tensor]:
    """Logits or hidden states (B, M, X), M >= N, and labels (B, N) so that one predicts the other.

    Places before the text, which are an image's, have no labels and are left out. shifted: labels
    are in step already.
    """
    labels = without_media(model, labels.to(predictions.device))
    before = predictions.size(1) - labels.size(1)
    if before < 0:
        raise ValueError(f"{labels.size(1)} labels for {predictions.size(1)} predictions")
    if model.config.is_encoder_decoder or shifted:
        return predictions[:, before:], labels
    return predictions[:, before:-1], labels[:, 1:]


def give_decoder_inputs(model: nn.Module, labels: Tensor, inputs: dict) -> None:
    """Put what an encoder-decoder model would make of its labels into `inputs`, where it is not."""
    given = (inputs.get("decoder_input_ids"), inputs.get("decoder_inputs_embeds"))
    if not model.config.is_encoder_decoder or any(value is not None for value in given):
        return
    if hasattr(model, "prepare_decoder_input_ids_from_labels"):
        inputs["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels=labels)
        return
    moved = labels.roll(1, dims=1)
    moved[:, 0] = _of_text(model, "decoder_start_token_id")
    inputs["decoder_input_ids"] = moved.where(moved != IGNORED, _of_text(model, "pad_token_id"))


def auxiliary(model: nn.Module, output: dict) -> tuple[Optional[Tensor], dict[str, Tensor]]:
    """What a model adds to its loss of itself, weighted; and by name, as the model has it."""
    loss = output.get("aux_loss")
    weight = getattr(model, "router_aux_loss_coef", None)
    if loss is None or weight is None:
        return None, {}
    return weight * loss, {"aux_loss": loss}


def _of_text(model: nn.Module, name: str) -> int:
    """A token of the configuration, or of the one that it has for text."""
    for config in (model.config, getattr(model.config, "text_config", None)):
        if getattr(config, name, None) is not None:
            return getattr(config, name)
    raise ValueError(f"{type(model).__name__}: config.{name} is not set")
