"""One call from settings to a captioner, with made-up weights until a checkpoint is loaded."""

from collections.abc import Mapping
from pathlib import Path
from typing import Optional, Union

from BLIP.blip import BlipCaptioner
from BLIP.first_token import FirstTokenShift
from BLIP.med import TextDecoder
from BLIP.med_config import read_med_config
from BLIP.tokenizer import CaptionTokenizer
from BLIP.vit import ImageEncoder
from smile import Objective

MED_CONFIG = Path(__file__).resolve().parent.parent / "configs" / "med_config.json"


def build_captioner(
    tokenizer: str = "bert-base-uncased",
    vit: Union[str, Mapping] = "base",
    image_size: int = 384,
    med_config: Union[str, Path, Mapping] = MED_CONFIG,
    objective: Optional[Objective] = None,
    prompt: str = "a picture of ",
    vit_grad_ckpt: bool = False,
    vit_ckpt_layer: int = 0,
    max_tokens: int = 40,
    first_token_shift: bool = False,
) -> BlipCaptioner:
    """A BlipCaptioner; the arguments are the configuration's keys of the same names.

    Without an objective it is SMILE. Raises TokenizerError, and ValueError for impossible sizes.
    """
    words = CaptionTokenizer(tokenizer)
    sizes = read_med_config(med_config)
    objective = (objective or Objective("smile")).with_pad_token(words.pad)
    encoder = ImageEncoder(vit, image_size, vit_grad_ckpt, vit_ckpt_layer)
    decoder = TextDecoder(sizes, len(words), encoder.embed_dim, objective)
    shift = FirstTokenShift(words) if first_token_shift else None
    return BlipCaptioner(encoder, decoder, words, prompt, max_tokens, shift)
