"""A classic captioner: image encoder, recurrent decoder and words behind one interface."""

from typing import Any, Optional

import torch
from torch import Tensor, nn

from baselines.cells import AttentionLSTM, PooledDecoder, ShowAttendTell
from baselines.decoder import RecurrentStep, teacher_forcing
from baselines.image_encoder import ImageEncoder
from baselines.vocabulary import Vocabulary, load_word_vectors, normalise_embedding
from decoding import DecodingSettings, Generated, draw_captions, until_end
from smile import Objective, ObjectiveOutput
from smile.objective import captions_an_image

MODELS = ("rnn", "lstm", "attn", "sat")


class ClassicCaptioner(nn.Module):
    """RNN, LSTM, attention LSTM or Show, Attend and Tell, as its decoder is.

    It satisfies `captioning.captioners.interface.Captioner`, which says what each method is for.
    Its arguments, but for encoder and tokenizer, are configuration keys of the same names.

    model: of MODELS. tokenizer: a `baselines.Vocabulary`, or one of word pieces with the same
    methods. Without an objective it is SMILE. prompt: what every caption starts with, not scored in
    training and cut off in generation. max_tokens: training captions are cut to so many tokens,
    start and end included. attention_dim, num_layers, deep_output: Show, Attend and Tell's.
    tie_embeddings: see `baselines.decoder`. attention_penalty: the weight of `unseen`, which asks
    that every place is looked at in the course of a caption. encoder_lr: the learning rate of the
    encoder's network, 0 for none. embedding_lr: that of the word vectors, None for the run's.
    teacher_forcing and its k: see `baselines.decoder.teacher_forcing`. Raises ValueError for a
    prompt with a word that the tokenizer does not know, and for a file of word vectors that does
    not fit.
    """

    def __init__(
        self,
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
        deep_output: bool = True,
        dropout: float = 0.5,
        tie_embeddings: bool = False,
        word_vectors: Optional[str] = None,
        normalise_embeddings: bool = False,
        attention_penalty: float = 0.0,
        encoder_lr: float = 0.0,
        embedding_lr: Optional[float] = None,
        teacher_forcing: str = "always",
        teacher_forcing_k: float = 10.0,
    ):
        super().__init__()
        self.encoder, self.tokenizer = encoder, tokenizer
        sizes = (len(tokenizer), encoder.dim, embed_dim, hidden_dim, dropout)
        if model == "sat":
            self.decoder = ShowAttendTell(*sizes, attention_dim, num_layers, deep_output)
        elif model == "attn":
            self.decoder = AttentionLSTM(*sizes)
        else:
            self.decoder = PooledDecoder(model, *sizes)
        if tie_embeddings:
            self.decoder.tie_embeddings()
        if word_vectors:
            tokens = [tokenizer.token(number) for number in range(len(tokenizer))]
            load_word_vectors(self.decoder.embedding, tokens, word_vectors)
        if normalise_embeddings:
            normalise_embedding(self.decoder.embedding)
        self.objective = (objective or Objective("smile")).with_tokens(tokenizer.pad, tokenizer.end)
        self.prompt = prompt
        self.prompt_ids = tokenizer.encode_prompt(prompt)  # (p,)
        if tokenizer.unknown in self.prompt_ids:
            raise ValueError(f"prompt: the vocabulary lacks a word of {prompt!r}")
        self.max_tokens = max_tokens
        self.attention_penalty = attention_penalty
        self.encoder_lr, self.embedding_lr = encoder_lr, embedding_lr
        self.forcing = teacher_forcing, teacher_forcing_k
        self.max_positions, self.has_unused_parameters = None, False
        self._unsaid = torch.tensor([tokenizer.pad, tokenizer.start, tokenizer.unknown])

    @property
    def min_batch_size(self) -> int:
        return self.encoder.min_batch_size

    def forward(self, image: Tensor, captions: list[list[str]]) -> ObjectiveOutput:
        """The objective on k captions of each image, which is encoded once.

        image: (B, 3, S, S), normalised; captions: B lists of k strings, without the prompt. Raises
        ValueError where their numbers differ.
        """
        logits, labels, attention = self._predict(image, captions)
        output = self.objective(logits, labels)
        if not self.attention_penalty:
            return output
        penalty = unseen(attention, labels != self.objective.ignore_index)
        return ObjectiveOutput(
            output.loss + self.attention_penalty * penalty,
            {**output.parts, "attention": penalty.detach()},
            output.tokens,
        )

    def predictions(self, image: Tensor, captions: list[list[str]]) -> tuple[Tensor, Tensor]:
        """Logits (R, N, V) and the labels (R, N) that they predict, R = B * k; see `forward`."""
        return self._predict(image, captions)[:2]

    def _predict(self, image: Tensor, captions: list[list[str]]) -> tuple[Tensor, Tensor, Tensor]:
        rows = (len(image), captions_an_image(captions, len(image)))
        texts = [self.prompt + caption for group in captions for caption in group]
        tokens, mask = (t.to(image.device) for t in self.tokenizer.encode(texts, self.max_tokens))
        given = len(self.prompt_ids)
        labels = tokens.masked_fill(mask == 0, self.objective.ignore_index)[:, given:]
        read = tokens[:, :-1].unflatten(0, rows)  # (B, k, n)
        logits, attention = self.decoder(read, self.encoder(image), given)
        attention = None if attention is None else attention.flatten(0, 1)
        return logits.flatten(0, 1), labels, attention

    @torch.inference_mode()
    def generate_details(self, image: Tensor, settings: DecodingSettings) -> Generated:
        """Captions of images (B, 3, S, S) with their token ids and scores."""
        return self.generate_from(self.encode(image), settings)

    @torch.inference_mode()
    def generate_from(self, encoded: Tensor, settings: DecodingSettings) -> Generated:
        """Captions of images whose annotations are there, (B, P, D)."""
        step = RecurrentStep(self.decoder, encoded, self._unsaid)
        return draw_captions(
            step, self.prompt_ids, encoded, self.tokenizer, settings, self._caption
        )

    def encode(self, image: Tensor) -> Tensor:
        """Images (B, 3, S, S) -> annotations (B, P, D)."""
        return self.encoder(image)

    def generate(self, image: Tensor, settings: DecodingSettings) -> list[str]:
        """The best caption of each image (B, 3, S, S)."""
        return [captions[0] for captions in self.generate_details(image, settings).captions]

    def _caption(self, ids: Tensor) -> str:
        return self.tokenizer.decode(ids[len(self.prompt_ids) :])

    @torch.inference_mode()
    def score_tokens(self, encoded: Tensor, ids: Tensor) -> tuple[Tensor, Optional[Tensor]]:
        """What it makes of an image's annotations (1, P, D) before each of the ids (n,) it said.

        Returns logits (n - p, V) of those after the prompt and, for a captioner that looks at the
        image again and again, where it looks: (n - p, P), rows that sum to 1.
        """
        logits, attention = self.decoder(ids[None, None, :-1], encoded, len(self.prompt_ids))
        logits = logits[0, 0].index_fill(-1, self._unsaid.to(logits.device), float("-inf"))
        return logits, None if attention is None else attention[0, 0]

    def for_inference(
        self, dtype: torch.dtype = torch.float32, compiled: bool = False
    ) -> "ClassicCaptioner":
        """Itself: it computes in `dtype` under autocast."""
        return self.eval()

    def log_likelihoods(self, encoded: Tensor, ids: Tensor, temperature: float = 1.0) -> Tensor:
        """float32 (B, k, n - p) of captions (B, k, n), with gradient, 0 behind the end."""
        given = len(self.prompt_ids)
        logits, _ = self.decoder(ids[:, :, :-1], encoded, given)
        logits = logits.float().index_fill(-1, self._unsaid.to(ids.device), float("-inf"))
        said, end = ids[:, :, given:], self.tokenizer.end
        real = until_end(said, end)
        logprobs = (logits / temperature).log_softmax(-1)
        logprobs = logprobs.gather(3, said.where(real, end).unsqueeze(3)).squeeze(3)
        return logprobs.masked_fill(~real, 0)

    def compile_parts(self) -> None:
        """All but the decoder, whose loop over words would be compiled anew for every length."""
        self.encoder.compile()
        self.objective.compile()

    def parameter_groups(self) -> list[tuple[list[nn.Parameter], Optional[float]]]:
        apart = []
        if self.encoder_lr:
            apart.append((list(self.encoder.network.parameters()), self.encoder_lr))
        if self.embedding_lr is not None:
            apart.append(([self.decoder.embedding.weight], self.embedding_lr))
        taken = {id(parameter) for parameters, _ in apart for parameter in parameters}
        rest = [p for p in self.parameters() if p.requires_grad and id(p) not in taken]
        return [(rest, None), *apart]

    def shards(self) -> list[nn.Module]:
        return [self.encoder, self.decoder]

    def begin_epoch(self, epoch: int) -> None:
        schedule, k = self.forcing
        self.decoder.teacher_forcing = teacher_forcing(schedule, epoch, k)

    def saved_beside_weights(self) -> dict[str, Any]:
        """The words that were counted."""
        counted = isinstance(self.tokenizer, Vocabulary)
        return {"vocabulary": self.tokenizer.words} if counted else {}


def unseen(attention: Tensor, labelled: Tensor) -> Tensor:
    """The mean over places of (1 - sum over time of the attention) ** 2, a mean over tokens.

    attention: (R, N, P); labelled: bool (R, N), the positions that count. The doubly stochastic
    term of Show, Attend and Tell (arXiv 1502.03044, equation 14), a mean in place of the sum. A
    caption counts by its tokens, as in the loss beside it: so the mean over several batches, or
    processes, weighted by their tokens, is that of all their captions together.
    """
    seen = (attention * labelled.unsqueeze(2)).sum(1)  # (R, P)
    tokens = labelled.sum(1)  # (R,)
    return ((1 - seen).square().mean(1) * tokens).sum() / tokens.sum().clamp(min=1)
