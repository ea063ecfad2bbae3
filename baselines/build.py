"""One call from settings to a classic captioner, with made-up weights."""

from typing import Optional

from baselines.captioner import ClassicCaptioner
from baselines.cells import AttentionLSTM, PooledDecoder
from baselines.decoder import RecurrentDecoder
from baselines.image_encoder import ImageEncoder
from baselines.show_attend_tell import ShowAttendTell
from baselines.word_vectors import load_word_vectors, normalise_embedding
from smile import Objective

MODELS = ("rnn", "lstm", "attn", "sat")


def build_classic(
    model: str,
    encoder: ImageEncoder,
    tokenizer,
    objective: Optional[Objective] = None,
    prompt: str = "",
    max_tokens: int = 40,
    embed_dim: int = 256,
    hidden_dim: int = 512,
    attention_dim: int = 512,
    num_layers: int = 1,
    dropout: float = 0.5,
    word_vectors: Optional[str] = None,
    normalise_embeddings: bool = False,
    attention_penalty: float = 0.0,
    encoder_lr: float = 0.0,
    teacher_forcing: str = "always",
    teacher_forcing_k: float = 10.0,
) -> ClassicCaptioner:
    """A ClassicCaptioner; the arguments are the configuration's keys of the same names.

    model: of MODELS. attention_dim and num_layers are Show, Attend and Tell's. Without an objective
    it is SMILE. Raises ValueError for a file of word vectors that does not fit.
    """
    sizes = {
        "vocabulary_size": len(tokenizer),
        "image_dim": encoder.dim,
        "embed_dim": embed_dim,
        "hidden_dim": hidden_dim,
        "dropout": dropout,
    }
    decoder: RecurrentDecoder
    if model == "sat":
        decoder = ShowAttendTell(**sizes, attention_dim=attention_dim, num_layers=num_layers)
    elif model == "attn":
        decoder = AttentionLSTM(**sizes)
    else:
        decoder = PooledDecoder(model, **sizes)
    if word_vectors:
        tokens = [tokenizer.token(number) for number in range(len(tokenizer))]
        load_word_vectors(decoder.embedding, tokens, word_vectors)
    if normalise_embeddings:
        normalise_embedding(decoder.embedding)
    return ClassicCaptioner(
        encoder,
        decoder,
        tokenizer,
        (objective or Objective("smile")).with_pad_token(tokenizer.pad),
        prompt,
        max_tokens,
        attention_penalty,
        encoder_lr,
        teacher_forcing,
        teacher_forcing_k,
    )
