"""The judge, another captioner: whether captions identify their photos by their likelihood."""

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
from captioning.models.generation import build_image_loader
from captioning.report.comparison import held_out

CROWD = 100  # photos in a group, including the caption's own photo
HUMANS = "humans"
_IMAGES_AT_ONCE = 10


def found(seed: Path, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """{run: {image id: 100 or 0}} for a seed's runs and for HUMANS.

    names: the runs' folders, relative to the seed's. The value is 100 if the judge ranks the
    caption's own photo first, else 0. Results are cached in the judge's folder until the captions
    or the judge change.
    """
    config, captioner = load_trained(str(seed / JUDGE / BEST), None, torch.device("cpu"))
    samples = read_split(config, "test")
    held = held_out({sample.image_id: sample.captions for sample in samples})[0]
    results = {}
    for name in (HUMANS, *names):
        path = seed / JUDGE / "result" / f"judged_{name.replace('/', '_')}.json"
        texts = held if name == HUMANS else captions_of(seed / name)
        captions = {str(image_id): text for image_id, text in texts.items()}
        judged = path.exists() and path.stat().st_mtime >= (seed / JUDGE / BEST).stat().st_mtime
        known = read_json(path) if judged else {}
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
    """{image id: rank of the caption's own photo}; 1 is best.

    Photos are split into fixed random groups. A caption is scored against all photos of its group.
    Ties get their mean rank.
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
    """Log-likelihoods of all captions given all photos: float64 (photos, captions), token sums."""
    at_once = config.model_copy(update={"eval_batch_size": _IMAGES_AT_ONCE})
    rows = []
    for batch in Prefetcher(build_image_loader(photos, at_once)[0], torch.device("cpu")):
        image = batch["image"]
        logits, labels = captioner.predictions(image, [list(texts)] * len(image))  # (R, N, V)
        logprobs = logits.log_softmax(-1).gather(2, labels.clamp(min=0).unsqueeze(2)).squeeze(2)
        sums = logprobs.masked_fill(labels < 0, 0).double().sum(1)  # (R,)
        rows.append(sums.unflatten(0, (len(image), len(texts))))
    return torch.cat(rows)
