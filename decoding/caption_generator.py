"""Provides the base class of captioners that decode token by token with a `decoding.Step`."""

from contextlib import nullcontext
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoding.characters import join_characters
from decoding.interface import DecodingSettings, Generated, caption_lengths, until_end
from decoding.search import decode

# One prompt per image. None, as an entry or instead of the list, means the captioner's own prompt.
Prompts = Optional[list[Optional[str]]]
IGNORE = -100  # the label of a position that is not scored


class CaptionGenerator(nn.Module):
    """Implements the methods of `captioning.captioners.interface.Captioner` that most share.

    A subclass defines the other methods of that protocol, and, for encoded images (B, P, width):

    - step_function(encoded, settings) -> `decoding.Step`
    - caption_logits(encoded, ids) -> logits (R, n - p, V) that predict each id after the prompt, of
      p tokens. ids: R captions (R, n), grouped by image

    Attributes:

    - image_size: S, the height and width of images in pixels
    - max_tokens: the length to which training captions are truncated, with prompt and end token
    - inference_context: called for a context manager around decoding, for example to turn autocast
      off. `encode` is outside of it, unless the subclass also uses it there.
    - shift: the id that replaces each id at the start of a training caption, see
      `BLIP.tokenizer.first_pieces`; None to leave captions unchanged
    """

    image_size: int
    max_tokens: int
    inference_context: Any = nullcontext
    shift: Any = None
    has_unused_parameters = False

    def training_tokens(
        self, image: Tensor, captions: list[list[str]], prompts: Prompts
    ) -> tuple[Tensor, Tensor, int]:
        """Tokenise k captions of each image, each after its prompt, on the images' device.

        Returns the tokens and labels of R = B * k captions, int64 (R, n), and the number of tokens
        of the shortest prompt. Prompts and padding have the label IGNORE. Raises ValueError if the
        images do not have the same number of captions.
        """
        counts = [len(group) for group in captions]
        if 0 in counts or counts != counts[:1] * len(image):
            raise ValueError(
                f"{counts} captions for {len(image)} images; give each image the same number"
            )
        texts, prompt_lengths = [], []
        for group, prompt in zip(captions, prompts or [None] * len(captions)):
            if prompt is None:
                prefix = self.prompt
                length = self.prompt_ids.size(-1)
            else:
                prefix = f"{prompt.strip()} "
                length = len(self.tokenizer.encode_prompt(prompt))
            texts += [prefix + caption for caption in group]
            prompt_lengths += [length] * len(group)
        tokens = self.tokenizer.encode(texts, self.max_tokens)
        caption_starts = torch.tensor(prompt_lengths)
        if self.shift is not None:
            rows = torch.arange(len(tokens))
            tokens[rows, caption_starts] = self.shift[tokens[rows, caption_starts]]
        is_prompt = torch.arange(tokens.size(1)) < caption_starts.unsqueeze(1)
        labels = tokens.masked_fill((tokens == self.tokenizer.pad) | is_prompt, IGNORE)
        moved = (part.to(image.device, non_blocking=True) for part in (tokens, labels))
        return *moved, min(prompt_lengths)

    def caption_text(self, ids: Tensor) -> str:
        """Return the text of a caption (L,) without the prompt, which its ids begin with."""
        return join_characters(self.tokenizer.decode(ids[self.prompt_ids.size(-1) :]))

    def log_likelihoods(self, encoded: Tensor, ids: Tensor, temperature: float = 1.0) -> Tensor:
        """Return the log-likelihood of each token of captions (B, k, n) after the prompt.

        The result is float32 (B, k, n - p), where p is the length of the prompt, and 0 after a
        caption's end. It has a gradient, except in an inference copy.
        """
        labels = ids[:, :, self.prompt_ids.size(-1) :]
        labels = labels.where(until_end(labels, self.tokenizer.end), IGNORE)
        logits = self.caption_logits(encoded, ids.flatten(0, 1)).float().flatten(0, 1)
        losses = F.cross_entropy(logits / temperature, labels.flatten(), reduction="none")
        return -losses.view(labels.shape)

    @torch.inference_mode()
    def generate_details(self, image: Tensor, settings: DecodingSettings) -> Generated:
        """Return captions of images (B, 3, S, S) with their token ids and scores."""
        return self.generate_from(self.encode(image), settings)

    @torch.inference_mode()
    def generate_from(self, encoded: Tensor, settings: DecodingSettings) -> Generated:
        """Return captions of encoded images (B, P, width)."""
        pad, end = self.tokenizer.pad, self.tokenizer.end
        prompts = self.prompt_ids.to(encoded.device).expand(len(encoded), -1)
        is_guided, inputs, own_scores = settings.guidance_scale != 1, encoded, None
        if is_guided:
            null = self.encode_null(encoded.device).expand_as(encoded)
            inputs = torch.cat([encoded, null])
        with self.inference_context():
            step = self.step_function(inputs, settings)
            ids, scores = decode(step, prompts, end, pad, settings)
            if is_guided:
                total = self.log_likelihoods(encoded, ids).double().sum(-1)
                lengths = caption_lengths(ids, prompts.size(1), end)
                own_scores = total / lengths**settings.length_penalty
        captions = [[self.caption_text(caption) for caption in group] for group in ids]
        return Generated(captions, ids, scores, own_scores)

    def generate(self, image: Tensor, settings: DecodingSettings) -> list[str]:
        """Return the best caption of each image (B, 3, S, S)."""
        return [captions[0] for captions in self.generate_details(image, settings).captions]

    def encode_null(self, device: torch.device) -> Tensor:
        return self.encode(torch.zeros(1, 3, self.image_size, self.image_size, device=device))

    def for_inference(
        self, dtype: torch.dtype = torch.float32, compiled: bool = False
    ) -> nn.Module:
        """Return this captioner in evaluation mode. The caller's autocast sets the precision."""
        return self.eval()

    def parameter_groups(self) -> list[tuple[list[nn.Parameter], Optional[float]]]:
        return [([p for p in self.parameters() if p.requires_grad], None)]

    def begin_epoch(self, epoch: int) -> None:
        """Do nothing. A subclass may change something between epochs."""

    def saved_beside_weights(self) -> dict[str, Any]:
        return {}
