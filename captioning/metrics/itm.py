"""Computes ITM: how well captions match their images, by BLIP's matching head (Li et al. 2022)."""

import numpy as np
import torch

from BLIP.weights.download import without_secrets
from captioning.metrics.evaluator import CaptionSet, Evaluator, Scores
from captioning.metrics.itm_model import ItmOptions, ItmScorer, check_itm_checkpoint
from captioning.metrics.over_ranks import batches_by_length, call_on_all_ranks, map_over_ranks


class Itm(Evaluator):
    """ITM: 100 * the matching head's probability that a caption matches its image.

    ITC: 100 * the cosine of the contrastive embeddings of caption and image.
    """

    name = "itm"
    Options = ItmOptions
    required = ("itm_model",)
    needs_images = True
    on_every_rank = True

    def check_requirements(self) -> None:
        check_itm_checkpoint(self.options.itm_model)

    def evaluate(self, captions: CaptionSet) -> Scores:
        file = self.options.itm_model
        scorer = call_on_all_ranks(lambda: ItmScorer(file, self.settings.device))
        paths = [self.settings.images[image_id] for image_id in captions.ids]
        texts = captions.texts

        def prepare(index):
            return scorer.read(paths[index]), [texts[index]]

        def compute(items):
            images, groups = zip(*items)
            encoded = scorer.encode(torch.stack(images))
            itm, itc = scorer.model.match(encoded, groups), scorer.model.similarity(encoded, groups)
            return torch.cat([itm, itc], 1).cpu().numpy()  # (B, 2)

        batches = batches_by_length([1] * len(paths), self.settings.batch_size)
        found = map_over_ranks(batches, prepare, compute, "BLIP's filter")
        if found is None:  # on ranks other than 0
            return Scores({})
        columns = (100 * found.astype(np.float64)).T.tolist()
        truncated = [text for text in texts if scorer.model.truncates(text)]
        settings = {"itm_model": without_secrets(file), "itm_truncated": len(truncated)}
        return Scores.from_means(dict(zip(self.metric_names, columns)), settings=settings)
