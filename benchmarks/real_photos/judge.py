"""Whether captions tell their photos from others, by how likely another captioner finds them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.real_photos.parts import JUDGE
from captioning.config import Config
from captioning.data import Prefetcher, Sample, preprocess_caption, read_split
from captioning.data.caption_files import Captions, read_predictions
from captioning.data.randomness import derived_seed, permutation
from captioning.files.reading import read_json
from captioning.files.writing import write_json
from captioning.models.build import load_trained
from captioning.models.checkpoints import BEST
from captioning.models.generation import images_of
from captioning.report.comparison import held_out

CROWD = 100  # photos that a caption is tried on, its own among them
HUMANS = "humans"
_IMAGES_AT_ONCE = 10


def found(seed: Path, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Of each run of a seed, and of HUMANS: 100 by image id where the judge finds the caption's
    own photo likeliest, else 0.

    What has been judged is kept in the judge's folder, and used while the captions are the same.
    """
    config, captioner = load_trained(str(seed / JUDGE / BEST), None, torch.device("cpu"))
    samples = read_split(config, "test")
    held = held_out({sample.image_id: sample.captions for sample in samples})[0]
    results = {}
    for name in (HUMANS, *names):
        path = seed / JUDGE / "result" / f"judged_{name}.json"
        texts = held if name == HUMANS else captions_of(seed / name)
        captions = {str(image_id): text for image_id, text in texts.items()}
        known = read_json(path) if path.exists() else {}
        if known.get("captions") != captions:
            with torch.no_grad():
                known = {
                    "captions": captions,
                    "places": places(captioner, config, samples, captions),
                }
            write_json(known, path)
        results[name] = {image_id: 100.0 * (p == 1) for image_id, p in known["places"].items()}
    return results


def captions_of(run: Path) -> Captions:
    return read_predictions(run / "result" / "test.json")


def places(
    captioner: nn.Module, config: Config, samples: Sequence[Sample], captions: Mapping[str, str]
) -> dict[str, float]:
    """The place of each caption's own photo, 1 for the best, by image id.

    The photos are put into crowds at random, always the same; a caption is tried on those of its
    own photo's. Photos with the same likelihood share a place in the middle.
    """
    samples = [sample for sample in samples if str(sample.image_id) in captions]
    order = permutation(len(samples), derived_seed("crowds"))
    found = {}
    for start in range(0, max(1, len(order) - CROWD + 1), CROWD):
        crowd = [samples[n] for n in order[start : start + CROWD]]
        texts = [preprocess_caption(captions[str(s.image_id)], config.max_words) for s in crowd]
        loglikelihoods = _loglikelihoods(captioner, config, crowd, texts)  # (photos, captions)
        own = loglikelihoods.diagonal()
        before = (loglikelihoods > own).sum(0) + ((loglikelihoods == own).sum(0) - 1) / 2
        found.update(zip((str(s.image_id) for s in crowd), (1 + before).tolist()))
    return found


def _loglikelihoods(
    captioner: nn.Module, config: Config, photos: Sequence[Sample], texts: Sequence[str]
) -> Tensor:
    """Of every caption under every photo: float64 (photos, captions), sums over tokens."""
    at_once = config.model_copy(update={"eval_batch_size": _IMAGES_AT_ONCE})
    rows = []
    for batch in Prefetcher(images_of(photos, at_once)[0], torch.device("cpu")):
        image = batch["image"]
        logits, labels = captioner.predictions(image, [list(texts)] * len(image))  # (R, N, V)
        logprobs = logits.log_softmax(-1).gather(2, labels.clamp(min=0).unsqueeze(2)).squeeze(2)
        sums = logprobs.masked_fill(labels < 0, 0).double().sum(1)  # (R,)
        rows.append(sums.unflatten(0, (len(image), len(texts))))
    return torch.cat(rows)
