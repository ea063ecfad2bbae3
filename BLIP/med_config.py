"""The sizes of the text decoder, read from `configs/med_config.json` or a mapping."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Union


@dataclass(frozen=True)
class MedConfig:
    """BERT's sizes under BERT's names; those of bert-base by default."""

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    max_position_embeddings: int = 512
    layer_norm_eps: float = 1e-12
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    initializer_range: float = 0.02

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            number = isinstance(value, (field.type, int)) and not isinstance(value, bool)
            if not number or not (value > 0 or (field.type is float and value == 0)):
                kind = "a whole number above 0" if field.type is int else "a number, 0 or above"
                raise ValueError(f"med_config: {field.name} is {value!r}; it must be {kind}")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            if getattr(self, name) >= 1:
                raise ValueError(f"med_config: {name} is {getattr(self, name)}; it must be below 1")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"med_config: hidden_size {self.hidden_size} is not a multiple of "
                f"num_attention_heads {self.num_attention_heads}"
            )


# Keys of BERT's configuration that decide nothing here: the vocabulary is the tokeniser's, the
# width of the image embeddings the image encoder's, and a captioning decoder has the rest built in.
IGNORED_KEYS = {
    *("architectures", "model_type", "type_vocab_size", "pad_token_id", "vocab_size"),
    *("encoder_width", "add_cross_attention", "hidden_act"),
}


def read_med_config(source: Union[str, Path, Mapping]) -> MedConfig:
    """From a JSON file or a mapping, whose keys replace the defaults.

    Raises ValueError, in one line, for a file that cannot be read or a key that is unknown.
    """
    if isinstance(source, Mapping):
        values = dict(source)
    else:
        try:
            values = json.loads(Path(source).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"med_config: cannot read {source}: {error}") from error
    known = {field.name for field in fields(MedConfig)}
    unknown = sorted(set(values) - known - IGNORED_KEYS)
    if unknown:
        raise ValueError(
            f"med_config: unknown key {unknown[0]!r}; known are {', '.join(sorted(known))}"
        )
    if values.get("hidden_act", "gelu") != "gelu":
        raise ValueError(
            f"med_config: hidden_act is {values['hidden_act']!r}; only 'gelu' is built"
        )
    return MedConfig(**{key: value for key, value in values.items() if key in known})
