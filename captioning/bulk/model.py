"""Captions the batches of bulk captioning with a checkpoint, and makes the output lines."""

import dataclasses
from collections.abc import Iterable
from functools import partial
from typing import Any, BinaryIO, Callable, NamedTuple, Optional

import torch

from captioning.bulk.reading import Batch
from captioning.bulk.request import Request
from captioning.bulk.shards import Entry, OutputLine, Settings
from captioning.captioners.interface import Images
from captioning.data.image import apply_transform, load_image
from captioning.data.randomness import derived_seed
from captioning.files.stores import without_secrets
from captioning.models.build import captioner_from, preprocessing_of, trained_config
from captioning.models.precision import Precision, check_precision
from captioning.models.prompts import caption_lists, check_reranker, prompt_ids
from captioning.models.reranking import check_reranking, with_reranking
from captioning.runtime.errors import UserError, value_errors_as_user_errors
from captioning.runtime.progress import log_line
from decoding import DecodingSettings

# Settings without an effect on greedy and beam search.
SAMPLING = ("top_p", "top_k", "temperature", "min_p", "typical_p")
# Settings that are off by default. They are recorded only if they differ from the default.
OFF_BY_DEFAULT = (
    "no_repeat_ngram_size",
    "num_beam_groups",
    "diversity_penalty",
    "min_p",
    "typical_p",
    "guidance_scale",
    "contrastive_alpha",
)
CONTRASTIVE = ("contrastive_beta", "contrastive_noise")  # have no effect without contrastive_alpha
RERANKING = ("num_candidates", "candidates", "rerank_weight", "rerank_judge")


# The captions of one image, the best first. Each is {"caption": text, name of a score: value}.
Captions = list[dict[str, Any]]


class CaptionerLoader(NamedTuple):
    """identity: the settings that identify a run. load: loads the run's captioner."""

    identity: Settings
    load: Callable[[], Any]


class CheckpointModel:
    """A captioner with its preprocessing and decoding settings.

    config: a YAML file, for a checkpoint without a configuration. changes: {key: value} that
    replace values of the configuration. num_return: captions per image. The constructor loads the
    checkpoint, and raises UserError.

    The engines use: `read` and `join`, which make a batch of image files, see `ShardImages`;
    `batch_size` and `num_workers`; `prefetch` and `lines`; and `report`, a log line that says what
    was loaded. `origin` is what each output line records: {"checkpoint", "settings"}.
    """

    def __init__(
        self,
        checkpoint: str,
        config: Optional[str],
        changes: dict[str, Any],
        num_return: int,
        device: torch.device,
    ):
        run = self.config = trained_config(checkpoint, config, changes)
        reranked = run.rerank is not None
        needs = {
            "--do_sample": (SAMPLING, run.sample or reranked),
            "--rerank": (RERANKING, reranked),
            "--contrastive_alpha": (CONTRASTIVE, run.contrastive_alpha),
        }
        for flag, (names, is_enabled) in needs.items():
            unused = [name for name in names if name in changes]
            if unused and not is_enabled:
                raise UserError(f"--{unused[0]} needs {flag}")
        check_precision(run, device)
        with value_errors_as_user_errors():
            settings = run.decoding_settings()
            reranking = run.reranking()
            if reranking is None:
                settings = dataclasses.replace(settings, num_return=num_return)
                used = settings
            else:
                reranking = dataclasses.replace(reranking, num_return=num_return)
                used = reranking.candidate_settings(settings)
        check_reranking(run)
        captioner, self.report = captioner_from(run, checkpoint)
        self.precision = Precision(run.precision, device)
        captioner = captioner.to(device)
        self.captioner = captioner.for_inference(self.precision.dtype, run.compile)
        self.generator = with_reranking(self.captioner, reranking, device)
        self.settings, self.device = settings, device
        self.batch_size = run.eval_batch_size or run.batch_size
        self.generated_at_once = self.batch_size  # in images; lowered when GPU memory runs out
        self.num_workers = run.num_workers
        self.preprocessing = preprocessing_of(run)
        self.collate = self.preprocessing.collate
        self.takes_prompt = self.preprocessing.takes_prompt
        self.read = partial(_read, self.preprocessing.evaluation, self.takes_prompt)
        recorded = recorded_settings(used, run.seed)
        if reranking is not None:
            recorded.update(reranking.recorded_settings())
            if reranking.model:
                recorded["rerank_model"] = without_secrets(reranking.model)
        recorded["precision"] = run.precision
        self.origin = {"checkpoint": without_secrets(checkpoint), "settings": recorded}

    def prefetch(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        """Return the batches unchanged. `ServedModel` submits its requests here."""
        return batches

    def lines(self, batch: Batch, offset: int, request: Request) -> list[OutputLine]:
        """Return one output line for each entry of a batch, with captions or an error.

        offset: the number of images of the shard before this batch. request: the call of bulk
        captioning. Sampled captions depend on the seed, the shard, the offset and the batch size.
        If GPU memory runs out, fewer images are captioned at once, so that sampled captions change.
        """
        entries, images = self._mark_unusable_prompts(batch)
        prompts = [entry.get("prompt") for entry in entries if "error" not in entry]
        generated = iter(self._captions(images, prompts, batch.shard, offset))
        return [
            line_of(entry, [] if "error" in entry else next(generated), request, self.origin)
            for entry in entries
        ]

    def _mark_unusable_prompts(self, batch: Batch) -> tuple[list[Entry], Optional[Images]]:
        """Return all entries of a batch, and the images whose prompt can be used.

        The entry of another image gets an "error", for example if its prompt leaves no token for a
        caption.
        """
        entries, kept, num_read = [], [], 0
        for entry in batch.entries:
            if "error" not in entry:
                try:
                    if entry.get("prompt"):
                        check_reranker(self.config)
                    if not self.takes_prompt:
                        room = self.config.max_length
                        prompt_ids(self.captioner, entry.get("prompt"), "max_length", room)
                    kept.append(num_read)
                except UserError as error:
                    entry = {**entry, "error": f"{entry['image']}: {error}"}
                num_read += 1
            entries.append(entry)
        images = batch.image
        if len(kept) < num_read:
            images = images[kept] if kept else None
        return entries, images

    def _captions(
        self, images: Optional[Images], prompts: list[Optional[str]], shard: int, offset: int
    ) -> list[Captions]:
        """Return the captions of each image with their scores, for `line_of`.

        prompts: each image's own prompt, or None. shard, offset: see `lines`.
        """
        captions = []
        while images is not None and len(captions) < len(images):
            first = len(captions)
            piece = images[first : first + self.generated_at_once]
            torch.manual_seed(derived_seed("caption", self.config.seed, shard, offset + first))
            piece_prompts = None if self.takes_prompt else prompts[first : first + len(piece)]
            generated = self._generate(piece, piece_prompts)
            if generated is None:
                self._lower_generated_at_once(len(piece))
            else:
                captions += generated
        return captions

    def _generate(
        self, images: Images, prompts: Optional[list[Optional[str]]]
    ) -> Optional[list[Captions]]:
        """Return the captions of each image; None if GPU memory runs out.

        It does not raise, because a traceback would keep the failed attempt's tensors in memory.
        """
        try:
            with self.precision.autocast():
                images = images.to(self.device, non_blocking=True)
                return caption_lists(self.generator, self.captioner, images, self.settings, prompts)
        except torch.OutOfMemoryError:
            return None

    def _lower_generated_at_once(self, count: int) -> None:
        """Set `generated_at_once` to half of the `count` images that did not fit.

        Raises UserError if a single image did not fit.
        """
        if count == 1:
            raise UserError(
                "out of GPU memory with a single image; lower --num_beams or --max_length, or use "
                "another device"
            )
        self.generated_at_once = count // 2
        log_line(
            f"out of GPU memory with {count} images at once; from now on {self.generated_at_once}"
        )
        torch.cuda.empty_cache()


def _read(
    transform: Callable,
    takes_prompt: bool,
    path: str,
    data: Optional[BinaryIO],
    prompt: Optional[str],
) -> Any:
    """Return the captioner's input for an image file. Raises UserError.

    transform, takes_prompt: from `Preprocessing`. path, data, prompt: see `ShardImages.read`.
    """
    return apply_transform(transform, load_image(path, data), path, prompt, takes_prompt)


def line_of(
    entry: Entry,
    captions: Captions,
    request: Request,
    origin: Settings,
) -> OutputLine:
    """Return the output line of an entry: its "error", or its captions and scores.

    captions: not used for an entry with an "error". The line has the caption and the scores of the
    best caption. With several captions it also has the lists of all values under plural keys, such
    as "captions" and "scores". origin: {"checkpoint", "settings"}, which the line ends with.
    """
    line = {key: entry[key] for key in ("image", "image_id", "prompt") if key in entry}
    if "error" in entry:
        return {**line, "error": entry["error"]}
    for name in captions[0]:
        values = [caption[name] for caption in captions]
        if name == "caption":
            values = [request.prefix + caption + request.suffix for caption in values]
        line[name] = values[0]
        if len(values) > 1:
            line[f"{name}s"] = values
    return {**line, **origin}


def recorded_settings(settings: DecodingSettings, seed: int) -> Settings:
    """Return {name: value} of the settings that have an effect, to record in output lines.

    The names are those of transformers' `generate` where it has such an argument.
    """
    values = dataclasses.asdict(settings)
    sample = values.pop("sample")
    values.pop("seeds")
    values["num_return_sequences"] = values.pop("num_return")
    unused = {name for name in OFF_BY_DEFAULT if values[name] == getattr(DecodingSettings, name)}
    unused.update(["num_beams"] if sample else SAMPLING)
    if not settings.contrastive_alpha:
        unused.update(CONTRASTIVE)
    used = {name: value for name, value in values.items() if name not in unused}
    return {"do_sample": True, "seed": seed, **used} if sample else used
