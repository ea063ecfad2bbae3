"""Converts a photo and the prompt to model inputs with the model's own processor."""

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property, lru_cache
from textwrap import shorten
from typing import Any, NamedTuple, Optional

from PIL import Image
from torch import Tensor

from decoding import SettingsError
from vlm.library import Parts, load_parts, one_line_errors

# Stands for the caption when the chat template is rendered, to find the text around a caption.
PLACEHOLDER = "zq caption qz"
NO_TEXT_FAMILY = "vision-encoder-decoder"  # has no text input
# Families without a chat template, and what precedes the prompt.
PREFIXES = {"paligemma": "<image>", "florence2": "", "blip-2": "", "git": "", NO_TEXT_FAMILY: ""}
# Families for which the classifier-free guidance of transformers is exact. `generate` reads the
# prompt without the image in a second stream, with causal attention (in PaliGemma from transformers
# 5.23). The Qwen families are left out, because they keep the position offset of only one stream.
GUIDED_FAMILIES = (
    "gemma3",
    "git",
    "idefics3",
    "internvl",
    "llava_onevision",
    "mllama",
    "paligemma",
    "smolvlm",
)
NEGATIVE_PROMPT = "negative_prompt_ids"  # the argument of `generate` with the second stream's ids
# The processor is called with this photo to find out what it returns, such as the prompt's length.
PROBE_IMAGE = Image.new("RGB", (64, 48), (120, 130, 140))


class Turn(NamedTuple):
    """The text around a caption, from the chat template if the family has one.

    - prompt: the text up to the end of the generation prompt; "" if the family has no chat template
      and tokenises captions alone.
    - caption_prefix: the text between the prompt and the caption.
    - caption_suffix: the text after the caption that ends the turn; "" if only the eos token ends
      it.
    """

    prompt: str
    caption_prefix: str
    caption_suffix: str


class PromptProcessor:
    """A callable that converts an RGB photo to the model's inputs, a dict for a batch of one.

    The prompt is inserted into the chat template if the family has one. For GUIDED_FAMILIES the
    dict also has NEGATIVE_PROMPT, int64 (1, n), the prompt without the image; it is left out if the
    chat template requires an image. caption_length: the maximum number of tokens of a caption.
    Raises ValueError for a prompt or model that cannot be used.
    """

    def __init__(self, parts: Parts, prompt: str, caption_length: int = 0):
        self.parts, self.prompt, self.caption_length = parts, prompt.strip(), caption_length
        self.family = parts.config.model_type
        self.image_token = getattr(parts.config, "image_token_id", -1)
        if self.family in PREFIXES:
            if self.prompt and self.family == NO_TEXT_FAMILY:
                raise ValueError(
                    f"prompt is {prompt!r}, but {parts.name} has no text input: set prompt to ''"
                )
            # A decoder-only language model of BLIP-2 reads prompt and caption as one text.
            is_one_text = (
                self.family == "blip-2" and not parts.config.text_config.is_encoder_decoder
            )
            has_prefix = is_one_text and self.prompt
            self.turn = Turn(self.prompt, " ", "") if has_prefix else Turn("", "", "")
        else:
            self.turn = self._chat_turn()

    def __call__(self, photo: Image.Image, prompt: Optional[str] = None) -> dict[str, Tensor]:
        """Return the model's inputs. Raises ValueError if photo and prompt cannot be processed.

        prompt: the prompt for this photo; None for the prompt of the constructor.
        """
        name, processor = self.parts.name, self
        if prompt is not None:
            processor = PromptProcessor(self.parts, prompt)
        try:
            inputs = processor._process(photo) | processor._negative_prompt
        except Exception as error:  # processors raise any exception for an odd photo
            raise ValueError(
                f"{name} cannot process a photo of {photo.width} x {photo.height} pixels with this "
                f"prompt: {shorten(str(error) or repr(error), 200)}"
            ) from error
        limit, length = positions_of(self.parts.config), inputs.get("input_ids", Tensor()).size(-1)
        if limit and length + self.caption_length > limit:
            raise ValueError(
                f"photo and prompt take {length} tokens and a caption up to {self.caption_length}, "
                f"but {name} has {limit}: shorten the prompt {processor.prompt[:30]!r}"
            )
        return inputs

    def _process(self, photo: Image.Image) -> dict[str, Tensor]:
        """Return the processor's output for the photo and this processor's prompt."""
        if self.family == NO_TEXT_FAMILY:
            return dict(self.parts.processor(photo, return_tensors="pt"))
        if self.family not in PREFIXES:
            return self._chat_inputs({"type": "image", "image": photo})
        text = PREFIXES[self.family] + self.prompt
        inputs = dict(self.parts.processor(text=[text], images=[photo], return_tensors="pt"))
        if self.family == "git":  # its tokenizer adds an end token to the prompt
            inputs = {k: v if k == "pixel_values" else v[:, :-1] for k, v in inputs.items()}
        return inputs

    def _chat_inputs(self, *images: Mapping[str, Any]) -> dict[str, Tensor]:
        options = {"tokenize": True, "return_dict": True, "return_tensors": "pt"}
        template = self.parts.processor.apply_chat_template
        return dict(template([self._user_message(*images)], add_generation_prompt=True, **options))

    def _user_message(self, *images: Mapping[str, Any]) -> dict[str, Any]:
        return {"role": "user", "content": [*images, {"type": "text", "text": self.prompt}]}

    @cached_property
    def _negative_prompt(self) -> dict[str, Tensor]:
        """The entry {NEGATIVE_PROMPT: ids (1, n)}, or {} if guidance is not possible."""
        if self.family in GUIDED_FAMILIES:
            if self.family in PREFIXES:
                ids = self._process(PROBE_IMAGE)["input_ids"]
                return {NEGATIVE_PROMPT: ids[ids != self.image_token][None]}
            with suppress(Exception):  # a fine-tuned model's chat template may need an image
                return {NEGATIVE_PROMPT: self._chat_inputs()["input_ids"]}
        return {}

    def _chat_turn(self) -> Turn:
        """Render the chat template to find the text around a caption. Raises ValueError."""
        name = self.parts.name
        if not self.prompt:
            raise ValueError(f"prompt is empty, but {name} is a chat model and needs a prompt")
        user_message = self._user_message({"type": "image"})
        answer = {"role": "assistant", "content": [{"type": "text", "text": PLACEHOLDER}]}
        with one_line_errors(f"the chat template of {name}"):
            template = self.parts.processor.apply_chat_template
            prompt = template([user_message], add_generation_prompt=True)
            conversation = template([user_message, answer])
        before, placeholder, caption_suffix = conversation.rpartition(PLACEHOLDER)
        if not placeholder:
            raise ValueError(f"the chat template of {name} leaves out the assistant's message")
        # In some templates the conversation does not start with `prompt`. Then there is no prefix.
        caption_prefix = before[len(prompt) :] if before.startswith(prompt) else ""
        return Turn(prompt, caption_prefix, caption_suffix.strip())


def positions_of(config: Any) -> Optional[int]:
    """Return the maximum number of tokens of photo, prompt and caption together; None for no limit.

    config: the model's configuration. For an encoder-decoder of text the result is None, because
    its captions have separate positions. The limit also holds for rotary positions: the model can
    compute more positions, but was not trained on them.
    """
    text = config.get_text_config(decoder=True)
    return None if text.is_encoder_decoder else getattr(text, "max_position_embeddings", None)


@lru_cache(maxsize=4)
def load_prompt_processor(name: str, prompt: str, caption_length: int = 0) -> PromptProcessor:
    """Load a model's processor, try it on PROBE_IMAGE, and cache it. Raises ValueError.

    name: a value of the key `vlm`. The other arguments are those of `PromptProcessor`.
    """
    prompt_processor = PromptProcessor(load_parts(name), prompt, caption_length)
    prompt_processor(PROBE_IMAGE)
    return prompt_processor


def check_guidance(settings: Any, family: Optional[str] = None) -> None:
    """Raise SettingsError for guidance with beam search or for a family not in GUIDED_FAMILIES.

    settings: a configuration or `DecodingSettings`. family: the model_type; None if it is not known
    yet.
    """
    scale = f"guidance_scale is {settings.guidance_scale}"
    if settings.guidance_scale == 1:
        return
    if settings.num_beams > 1 and not settings.sample:
        raise SettingsError(
            f"{scale} with num_beams {settings.num_beams}, but model vlm has no guided beams: set "
            "num_beams to 1, or sample to true"
        )
    if family not in (None, *GUIDED_FAMILIES):
        raise SettingsError(
            f"{scale}, which model vlm does not support for {family}, only for "
            f"{', '.join(GUIDED_FAMILIES)}: set it to 1"
        )
