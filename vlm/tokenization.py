"""Converts captions to token ids and back, with the tokenizer of a model of transformers."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from decoding.thoughts import is_thought_tag, without_thoughts
from vlm.prompt import Turn


class CaptionTokenizer:
    """Implements `captioning.captioners.interface.Tokenizer` for a model of transformers.

    A caption is tokenised together with the prompt before it. The last id is `end`, the token that
    ends the turn. Special tokens in a caption's text are dropped, because an image token would
    require an image. Ids are padded with `pad`, -1, which is no token's id. transformers pads with
    `library_pad`, which may also be a token that the model generates.
    """

    pad = -1

    def __init__(
        self,
        tokenizer: Any,
        turn: Turn,
        end_tokens: Sequence[int],
        image_token: int = -1,
    ):
        """Read the special tokens. Raises ValueError if there is no end token.

        - end_tokens: the ids at which the model's generation config ends a caption.
        - image_token: the id of the image token, which is treated as a special token; -1 for none.
        """
        self.tokenizer, self.turn = tokenizer, turn
        added = tokenizer.added_tokens_decoder.items()
        self.special = {image_token, *(i for i, token in added if token.special)}
        self.thought_tags = {i for i, token in added if is_thought_tag(token.content)}
        self.end = self._find_end(end_tokens)
        self.end_tokens = sorted({*end_tokens, self.end})
        self.library_pad = self.end if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        unknown = tokenizer.unk_token_id
        self.unknown = -1 if unknown in (None, self.end) else unknown
        # Some ids have no token, and some heads have no row for the image token.
        self._size = max(i for i in tokenizer.get_vocab().values() if i != image_token) + 1
        self._prompt_ids = self._ids(turn.prompt)

    def __len__(self) -> int:
        return self._size

    def token(self, token_id: int) -> str:
        """Return a token as text. As in BERT, "##" precedes a token that continues a word."""
        token = self.tokenizer.convert_ids_to_tokens(int(token_id))
        if token is None or (token_id in self.special and token_id != self.end):
            return "##"  # an empty piece, because `decode` drops this id
        if token_id == self.end:
            return token
        text = self.tokenizer.convert_tokens_to_string(["a", token])[1:]
        return text.strip() if text[:1].isspace() else f"##{text}"

    def ids(self, text: str, max_length: int) -> list[int]:
        """Return the caption's ids and the end token, at most `max_length` ids in all."""
        text = self.turn.caption_prefix + text
        token_ids, prompt_ids = self._ids(self.turn.prompt + text), self._prompt_ids
        # If the tokenizer merges the end of the prompt with the caption, the ids do not begin with
        # the prompt's ids. Then the caption is tokenised separately.
        is_split = token_ids[: len(prompt_ids)] == prompt_ids
        caption_ids = token_ids[len(prompt_ids) :] if is_split else self._ids(text)
        kept = [i for i in caption_ids if i == self.unknown or i not in self.special]
        return [*kept[: max_length - 1], self.end]

    def encode(self, texts: list[str], max_length: int) -> Tensor:
        rows = [torch.tensor(self.ids(text, max_length)) for text in texts]
        return pad_sequence(rows, True, self.pad)

    def encode_prompt(self, prompt: str) -> Tensor:
        """Return no ids, because the prompt belongs to the model's inputs, not to the caption."""
        return torch.zeros(0, dtype=torch.int64)

    def decode(self, ids: Tensor) -> str:
        tokens = [i for i in ids.tolist() if i >= 0]
        has_thoughts = not self.thought_tags.isdisjoint(tokens)
        if has_thoughts:  # the tags may be special tokens
            tokens = [i for i in tokens if i not in self.special - self.thought_tags]
        text = self.tokenizer.decode(tokens, skip_special_tokens=not has_thoughts)
        return " ".join(without_thoughts(text).split())

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def _find_end(self, end_tokens: Sequence[int]) -> int:
        """Return the id of the token that ends a caption.

        It is the first special token after the caption in the chat template; without one, it is the
        eos token, or the first of `end_tokens` if these do not include eos.
        """
        eos = self.tokenizer.eos_token_id
        suffix_tokens = (i for i in self._ids(self.turn.caption_suffix) if i in self.special)
        ends = (*suffix_tokens, *(i for i in end_tokens if i == eos), *end_tokens, eos)
        if ends[0] is None:
            raise ValueError("the tokenizer has no end token (eos_token)")
        return ends[0]
