"""Defines BLIP's filter, which scores how well captions match an image, and loads it.

`captioning.metrics.itm` uses it as a metric, and bulk captioning uses it to filter captions.
"""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from BLIP.checkpoint import (
    CheckpointError,
    load_weights,
    read_checkpoint,
    settings_in,
)
from BLIP.download import without_secrets
from BLIP.inference import float_linear, replace_linears, shared_copy
from BLIP.med import bert_states, build_bert
from BLIP.sizes import MedConfig, read_med_config
from BLIP.skip_init import SkipInit
from BLIP.tokenizer import CaptionTokenizer
from BLIP.vit import ImageEncoder

MAX_TOKENS = 35  # as in BLIP's training for retrieval
HEAD = "itm_head.weight"


class BlipItm(nn.Module):
    """Computes BLIP's image-text matching (ITM) and contrastive similarity (ITC), arXiv 2201.12086.

    ITM and ITC share a ViT and a bidirectional text encoder. The text encoder attends to the image
    only for ITM. Parameter names are those of the released retrieval checkpoints. width: the length
    of the vectors that ITC compares.
    """

    def __init__(
        self,
        visual_encoder: ImageEncoder,
        config: MedConfig,
        tokenizer: CaptionTokenizer,
        width: int = 256,
    ):
        super().__init__()
        self.visual_encoder = visual_encoder
        self.text_encoder = build_bert(config, len(tokenizer), visual_encoder.embed_dim)
        self.vision_proj = nn.Linear(visual_encoder.embed_dim, width)
        self.text_proj = nn.Linear(config.hidden_size, width)
        self.itm_head = nn.Linear(config.hidden_size, 2)
        self.config = config
        self.tokenizer = tokenizer
        self.inference_context = nullcontext  # `shared_copy` replaces it

    @torch.inference_mode()
    def encode(self, image: Tensor) -> Tensor:
        """Encode images (B, 3, S, S) -> (B, 1 + P, D): [CLS], then P patches of width D."""
        with self.inference_context():
            return self.visual_encoder(image)

    @torch.inference_mode()
    def match(self, encoded: Tensor, captions: list[list[str]]) -> Tensor:
        """Return the probability (B, k) that each caption matches its image, from the ITM head.

        encoded: the result of `encode`, (B, 1 + P, D). captions: B lists of k strings.
        """
        with self.inference_context():
            states = self._text_states("[ENC]", captions, encoded, attend_image=True)
            logits = self.itm_head(states)  # (R, 2)
            return logits.float().softmax(-1)[:, 1].unflatten(0, (len(encoded), -1))

    @torch.inference_mode()
    def similarity(self, encoded: Tensor, captions: list[list[str]]) -> Tensor:
        """Return the cosine similarity (B, k) of each caption and its image, by ITC.

        `match` documents the arguments.
        """
        with self.inference_context():
            states = self._text_states("[CLS]", captions, encoded, attend_image=False)
            texts = F.normalize(self.text_proj(states), dim=-1)  # (R, width)
            images = F.normalize(self.vision_proj(encoded[:, 0]), dim=-1)
            return (texts.unflatten(0, (len(encoded), -1)) * images[:, None]).sum(-1)

    def _text_states(
        self, first: str, captions: list[list[str]], encoded: Tensor, attend_image: bool
    ) -> Tensor:
        """Return the last layer's output (R, H) at the first token of R = B * k captions.

        first: the token that replaces [DEC] at the start of each caption.
        """
        texts = [caption for group in captions for caption in group]
        tokens = self.tokenizer.encode(texts, MAX_TOKENS)
        mask = (tokens != self.tokenizer.pad)[:, None, None, :]  # (R, 1, 1, n)
        tokens[:, 0] = self.tokenizer.bert.token_to_id(first)
        tokens, mask = tokens.to(encoded.device), mask.to(encoded.device)
        return bert_states(self.text_encoder, tokens, mask, encoded if attend_image else None)[:, 0]

    def truncates(self, caption: str) -> bool:
        """Return whether a caption, with its first token and [SEP], is longer than MAX_TOKENS."""
        return len(self.tokenizer.ids(caption)) > MAX_TOKENS - 2

    def for_inference(self, dtype: torch.dtype) -> "BlipItm":
        """Return a faster copy for inference, see `shared_copy`.

        Its linear layers, except a few, compute in `dtype`.
        """
        copied = shared_copy(self)
        replace_linears(copied, partial(float_linear, dtype=dtype))
        return copied


def load_itm(
    checkpoint: str, trust_checkpoint: bool = True, **overrides: Any
) -> tuple[BlipItm, str]:
    """Return the model of a released retrieval or pre-training checkpoint, in evaluation mode.

    overrides: `image_size`, `tokenizer`, `vit` and `med_config`, see `settings_in`. Without
    `tokenizer`, a vocab.txt beside the checkpoint is used if there is one. The second result says
    what was not copied unchanged. Raises CheckpointError, DownloadError and ValueError.
    """
    name = without_secrets(checkpoint)
    content = read_checkpoint(checkpoint, trust_checkpoint)
    state = content["model"]
    if not {HEAD, "text_proj.weight"} <= state.keys():
        raise CheckpointError(
            f"{name} has no image-text matching head: give a checkpoint of BLIP's retrieval, "
            "such as model_base_retrieval_coco.pth"
        )
    settings = settings_in(content, state, name, **overrides)
    vocabulary = Path(checkpoint).with_name("vocab.txt")  # of a released filter, without a network
    if overrides.get("tokenizer") is None and vocabulary.is_file():
        settings["tokenizer"] = str(vocabulary)
    config = read_med_config(settings["med_config"])
    tokenizer = CaptionTokenizer(settings["tokenizer"])
    with SkipInit():
        encoder = ImageEncoder(settings["vit"], settings["image_size"])
        model = BlipItm(encoder, config, tokenizer, len(state["text_proj.weight"]))
    return model.eval(), load_weights(model, state, name)
