"""Self-critical training: captions are drawn, and made likelier by how much they beat a baseline.

SCST (Rennie et al. 2017, arXiv 1612.00563) takes the greedy caption for a baseline, a later form
(arXiv 2003.09971) the mean of an image's other samples.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional

import torch
from torch import Tensor, nn

from captioning.config import Config
from captioning.data import Sample
from captioning.metrics.diversity import words
from captioning.models.build import captioner_from
from captioning.rewards.interface import Sampled, TrainingImages
from captioning.rewards.registry import REWARDS
from captioning.rewards.workers import Rewards
from captioning.runtime.registry import load
from decoding import DecodingSettings, Generated
from smile import ObjectiveOutput


class SelfCritical(nn.Module):
    """A captioner, and what a step of self-critical training asks of it.

    The captioner draws, and tells its likelihoods, in evaluation mode: so it is asked about what
    it drew. Its likelihood part, if there is an objective, is in training mode as ever.

    start: where the KL is to, None without. sampled: what is kept of the last batch's captions.
    """

    def __init__(
        self,
        captioner: nn.Module,
        config: Config,
        rewards: Rewards,
        start: Optional[nn.Module] = None,
    ):
        super().__init__()
        self.captioner, self.config, self.rewards = captioner, config, rewards
        self._start = [start]  # of a list, lest its weights are taken for some that learn
        self.sampled: list[list[dict[str, Any]]] = []
        whole = {"top_p": 1.0, "top_k": 0, "min_length": 0, "max_length": config.max_tokens}
        self.greedily = DecodingSettings(num_beams=1, **whole)
        self.sampling = DecodingSettings(
            sample=True,
            num_return=config.reward_samples,
            temperature=config.reward_temperature,
            **whole,
        )

    def forward(
        self, image: Any, captions: list[list[str]], image_ids: Sequence[Any]
    ) -> ObjectiveOutput:
        """The loss whose expected gradient is that of minus the expected reward of a caption.

        To the reward belongs -reward_kl * log(p / p at the start), the mean of which is the KL's.
        A loss is a mean over captions of sums over their tokens, since the mean over tokens would
        have another gradient. tokens: the captions that were drawn.
        """
        config, captioner = self.config, self.captioner
        with _evaluating(captioner):
            encoded = captioner.encode(image)
            drawn = captioner.generate_from(encoded, self.sampling)
            asked = self.rewards.ask(image_ids, self._said(drawn))
            asked_of_best = None
            if config.reward_baseline == "greedy":
                best = captioner.generate_from(encoded, self.greedily)
                asked_of_best = self.rewards.ask(image_ids, self._said(best))
            # What autocast has kept of weights while captions were drawn has no gradient.
            torch.clear_autocast_cache()
            ids = drawn.token_ids.clone()
            temperature = config.reward_temperature
            logprobs = captioner.log_likelihoods(encoded, ids, temperature).sum(-1)  # (B, k)
            ratio = logprobs.detach() - self._at_start(image, ids, logprobs)
        likelihood = captioner(image, captions) if config.objective else None

        found = asked()
        rewards = self._weighed(found, logprobs)
        valued = rewards - config.reward_kl * ratio
        if asked_of_best:
            baseline = self._weighed(asked_of_best(), logprobs).expand_as(rewards)
        else:
            baseline = (valued.sum(1, keepdim=True) - valued) / (valued.size(1) - 1)
        loss = -((valued - baseline) * logprobs).mean()

        parts = {"reward": rewards.mean()}
        if len(found) > 1:
            parts.update({name: logprobs.new_tensor(found[name]).mean() for name in config.reward})
        parts["baseline"] = baseline.mean()
        if config.reward_kl:
            parts["kl"] = ratio.mean()
        lengths = [float(words(text)) for group in drawn.captions for text in group]
        parts["length"] = logprobs.new_tensor(lengths).mean()
        if likelihood is not None:
            loss = loss + likelihood.loss
            parts.update(likelihood.parts)
        self._keep(drawn, rewards)
        return ObjectiveOutput(loss, parts, torch.tensor(rewards.numel(), device=loss.device))

    def _said(self, drawn: Generated) -> list[list[Sampled]]:
        ended = (drawn.token_ids == self.captioner.tokenizer.end).any(-1).tolist()
        return [[Sampled(*one) for one in zip(*both)] for both in zip(drawn.captions, ended)]

    def _at_start(self, image: Any, ids: Tensor, logprobs: Tensor) -> Tensor:
        """What the captioner that training began with finds captions, (B, k); if it is there."""
        (start,) = self._start
        if start is None:
            return logprobs.detach()
        with torch.no_grad():
            of_each = start.log_likelihoods(
                start.encode(image), ids, self.config.reward_temperature
            )
        torch.clear_autocast_cache()
        return of_each.sum(-1)

    def _weighed(self, found: Mapping[str, Any], like: Tensor) -> Tensor:
        """(B, k), the weighted sum of rewards."""
        return like.new_tensor(sum(w * found[name] for name, w in self.config.reward.items()))

    def _keep(self, drawn: Generated, rewards: Tensor) -> None:
        pairs = zip(drawn.captions, rewards.tolist())
        self.sampled = [
            [{"caption": c, "reward": r} for c, r in zip(*of_image)] for of_image in pairs
        ]


def rewards_of(config: Config, samples: Sequence[Sample], device: torch.device) -> Rewards:
    """Those of a configuration, ready for the images of its training split. Raises UserError."""
    images = TrainingImages(
        {sample.image_id: sample.captions for sample in samples},
        {sample.image_id: Path(config.image_root, sample.image) for sample in samples},
        str(device),
    )
    kinds = {name: load(REWARDS[name]) for name in config.reward}
    rewards = {
        name: kind(images, **kind.Options.from_config(config)) for name, kind in kinds.items()
    }
    return Rewards(rewards, config.num_workers)


def start_of(config: Config, device: torch.device) -> Optional[nn.Module]:
    """The captioner as the run began, for its KL; None where it is not asked for."""
    if not (config.reward and config.reward_kl):
        return None
    captioner, _ = captioner_from(config, config.pretrained)
    return captioner.to(device).eval().requires_grad_(False)


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)
