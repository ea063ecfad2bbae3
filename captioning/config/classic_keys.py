"""The configuration keys of the classic captioners, which a BLIP run does not look at."""

from typing import Literal, Optional

from pydantic import Field, model_validator

from captioning.config.checked import Checked, Named

ATTENDING = ("attn", "sat")


class ClassicKeys(Checked):
    """The README's table says what each does."""

    model: Literal["blip", "rnn", "lstm", "attn", "sat"] = "blip"
    encoder: Named = "regnet_x_400mf"
    encoder_weights: Named = "default"
    encoder_lr: float = Field(0.0, ge=0)
    encoder_dim: Optional[int] = Field(None, gt=0, le=65_536)
    encoder_size: Optional[int] = Field(None, gt=0, le=1000)
    encoder_norm: bool = False
    vocabulary: Literal["words", "wordpiece"] = "words"
    vocabulary_size: int = Field(6400, gt=4)
    min_word_count: int = Field(1, gt=0)
    embed_dim: int = Field(256, gt=0, le=65_536)
    hidden_dim: int = Field(512, gt=0, le=65_536)
    attention_dim: int = Field(512, gt=0, le=65_536)
    num_layers: int = Field(1, gt=0, le=1000)
    dropout: float = Field(0.5, ge=0, lt=1)
    word_vectors: Optional[str] = None
    normalise_embeddings: bool = False
    attention_penalty: float = Field(0.0, ge=0)
    teacher_forcing: Literal["always", "never", "linear", "exponential", "inverse_sigmoid"] = (
        "always"
    )
    teacher_forcing_k: float = Field(10.0, gt=0)

    @model_validator(mode="after")
    def _suit_the_model(self):
        if self.attention_penalty and self.model not in ATTENDING:
            raise ValueError(
                f"attention_penalty is {self.attention_penalty}, but model {self.model} has no "
                f"attention to weigh; it is for {' and '.join(ATTENDING)}"
            )
        if self.num_layers > 1 and self.model in ("rnn", "lstm", "attn"):
            raise ValueError(f"num_layers is {self.num_layers}; {self.model} has one layer")
        k = self.teacher_forcing_k
        if self.teacher_forcing == "exponential" and k >= 1:
            raise ValueError(f"teacher_forcing_k is {k}; with exponential it must be below 1")
        if self.teacher_forcing == "inverse_sigmoid" and k < 1:
            raise ValueError(f"teacher_forcing_k is {k}; with inverse_sigmoid it must be 1 or more")
        return self
