"""Generates captions with a prompt for each image instead of the captioner's prompt.

Images whose prompts have the same number of tokens are captioned as one batch.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from captioning.captioners.interface import Captioner, Images
from captioning.config import Config
from captioning.data.annotations import Sample
from captioning.runtime.errors import UserError
from decoding import DecodingSettings, Generated, SettingsError

SCORE_DIGITS = 5  # decimals to which scores are rounded


def prompt_ids(captioner: Captioner, prompt: Optional[str], key: str, room: int) -> Tensor:
    """Return the ids (n,) of a prompt; if it is None, the ids of the captioner's prompt.

    key, room: the setting that limits the tokens of prompt and caption together, and its value. The
    setting is "max_length", or "max_tokens", which also counts the end token. Raises UserError for
    an unknown word, and if no token is left for a caption.
    """
    if prompt is None:
        return captioner.prompt_ids
    ids = captioner.tokenizer.encode_prompt(prompt)
    if captioner.tokenizer.unknown in ids:
        raise UserError(f"prompt {prompt!r} has a word that the vocabulary lacks: leave it out")
    reserved = 1 if key == "max_tokens" else 0  # for the end token
    if len(ids) + reserved >= room:
        raise UserError(
            f"prompt of {len(ids)} tokens, which leaves no room for a caption: {key} is {room}: "
            f"shorten {prompt[:30]!r} or raise {key}"
        )
    return ids


def check_prompts(
    samples: Iterable[Sample], captioner: Captioner, config: Config, key: str
) -> None:
    """Raise UserError if the prompts of `samples` cannot be used.

    Prompts cannot be used with a reward, or if `prompt_ids` refuses a prompt. key: "max_tokens" in
    training, "max_length" in generation; see `prompt_ids`.
    """
    images = {sample.prompt: sample.image for sample in samples if sample.prompt is not None}
    if not images:
        return
    if config.reward:
        raise UserError("the annotations have a column prompt, which reward does not support")
    for prompt, image in images.items():
        try:
            prompt_ids(captioner, prompt, key, getattr(config, key))
        except UserError as error:
            raise UserError(f"{image}: {error}") from None


def caption_lists(
    generator: Any,
    captioner: Captioner,
    images: Images,
    settings: DecodingSettings,
    prompts: Sequence[Optional[str]],
) -> list[list[dict[str, Any]]]:
    """Generate captions of each image; return the captions as `scored_lists` does.

    generator: the captioner, or a `Reranker` of the captioner. prompts: for each image its prompt,
    or None for the captioner's prompt. A captioner whose prompt is a question ignores them. Raises
    UserError.
    """
    default_prompt_ids, tokenizer = captioner.prompt_ids, captioner.tokenizer
    ends = getattr(tokenizer, "end_tokens", [tokenizer.end])  # a VLM may generate several
    try:
        rows_of = defaultdict(list)  # {number of a prompt's tokens: rows}
        ids = [prompt_ids(captioner, text, "max_length", settings.max_length) for text in prompts]
        for row, prompt in enumerate(ids):
            rows_of[len(prompt)].append(row)
        lists = {}
        for rows in rows_of.values():
            captioner.prompt_ids = torch.stack([ids[row] for row in rows])
            generated = generator.generate_details(images[rows], settings)
            lists.update(zip(rows, scored_lists(generated, ends)))
        return [lists[row] for row in range(len(ids))]
    except SettingsError as error:
        raise UserError(str(error)) from error
    finally:
        captioner.prompt_ids = default_prompt_ids


def scored_lists(generated: Generated, ends: list[int]) -> list[list[dict[str, Any]]]:
    """Return a list of captions for each image, the best caption first.

    A caption is a dict with "caption", "score" and, if `generated` has them, "own_score" and
    "rerank_score"; for the scores, see `decoding.Generated`. If a caption of the image was cut at
    max_length, all have "cut", a bool. ends: the ids of end tokens, which a cut caption lacks.
    """
    _, token_ids, *columns = generated
    names = ("score", "own_score", "rerank_score")
    is_cut = (~torch.isin(token_ids, token_ids.new_tensor(ends))).all(-1).tolist()
    columns = {n: scores.tolist() for n, scores in zip(names, columns) if scores is not None}
    lists = []
    for row, captions in enumerate(generated.captions):
        entries = []
        for place, caption in enumerate(captions):
            entry = {"caption": caption}
            if any(is_cut[row]):
                entry["cut"] = is_cut[row][place]
            for name, scores in columns.items():
                entry[name] = round(scores[row][place], SCORE_DIGITS)
            entries.append(entry)
        lists.append(entries)
    return lists
