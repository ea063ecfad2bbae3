"""Trains a captioner by REINFORCE on sampled captions, with a reward and a baseline.

The baseline is the reward of the greedy caption (SCST, Rennie et al. 2017, arXiv 1612.00563) or the
mean reward of the image's other samples (arXiv 2003.09971).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from captioning.config import Config
from captioning.data.annotations import Sample
from captioning.metrics.diversity import count_words
from captioning.rewards.interface import Reward, Sampled, TrainingImages
from captioning.rewards.registry import REWARDS
from captioning.runtime.registry import load
from decoding import DecodingSettings, Generated
from smile import ObjectiveOutput


class SelfCritical(nn.Module):
    """Wraps a captioner; `forward` computes the loss of self-critical training.

    Captions are sampled, and their log-probabilities computed, in evaluation mode (without
    dropout), so that both use the same distribution. An objective besides the reward is computed in
    training mode.
    """

    def __init__(self, captioner: nn.Module, config: Config, rewards: Mapping[str, Reward]):
        super().__init__()
        self.captioner, self.config, self.rewards = captioner, config, rewards
        # Samples come from the whole distribution, without truncation.
        limits = {"top_p": 1.0, "top_k": 0, "min_length": 0, "max_length": config.max_tokens}
        self.greedy = DecodingSettings(num_beams=1, **limits)
        self.sampling = DecodingSettings(
            sample=True,
            num_return=config.reward_samples,
            temperature=config.reward_temperature,
            **limits,
        )

    def forward(
        self, image: Any, captions: list[list[str]], image_ids: Sequence[Any]
    ) -> ObjectiveOutput:
        """Return the REINFORCE loss, plus the objective if the configuration has one.

        The expected gradient of the REINFORCE loss is the gradient of minus the expected reward.
        The loss sums over a caption's tokens, because a mean over tokens would change the
        gradient, and averages over captions. The output's `tokens` is the number of sampled
        captions.
        """
        config, captioner = self.config, self.captioner
        with _evaluation_mode(captioner):
            encoded = captioner.encode(image)
            sampled = captioner.generate_from(encoded, self.sampling)
            sampled_captions = self._captions(sampled)
            if config.reward_baseline == "greedy":
                greedy_captions = self._captions(captioner.generate_from(encoded, self.greedy))
            # Generation has filled autocast's cache with casts of the weights that have no
            # gradient. Clear the cache, so that the gradient reaches the weights.
            torch.clear_autocast_cache()
            ids = sampled.token_ids.clone()
            temperature = config.reward_temperature
            logprobs = captioner.log_likelihoods(encoded, ids, temperature).sum(-1)  # (B, k)
        objective_output = captioner(image, captions) if config.objective else None

        # Computed last, while a GPU still works on the likelihoods.
        rewards_by_name = self._rewards(image_ids, sampled_captions)
        rewards = self._weighted(rewards_by_name, logprobs)
        if config.reward_baseline == "greedy":
            rewards_of_greedy = self._rewards(image_ids, greedy_captions)
            baseline = self._weighted(rewards_of_greedy, logprobs).expand_as(rewards)
        else:
            baseline = (rewards.sum(1, keepdim=True) - rewards) / (rewards.size(1) - 1)
        loss = -((rewards - baseline) * logprobs).mean()

        parts = {"reward": rewards.mean()}
        if len(rewards_by_name) > 1:
            for name in config.reward:
                parts[name] = logprobs.new_tensor(rewards_by_name[name]).mean()
        parts["baseline"] = baseline.mean()
        texts = (text for group in sampled.captions for text in group)
        lengths = [float(count_words(text, config.language)) for text in texts]
        parts["length"] = logprobs.new_tensor(lengths).mean()
        if objective_output is not None:
            loss = loss + objective_output.loss
            parts.update(objective_output.parts)
        return ObjectiveOutput(loss, parts, torch.tensor(rewards.numel(), device=loss.device))

    def _captions(self, generated: Generated) -> list[list[Sampled]]:
        has_end = (generated.token_ids == self.captioner.tokenizer.end).any(-1).tolist()
        return [
            [Sampled(text, ended) for text, ended in zip(captions, flags)]
            for captions, flags in zip(generated.captions, has_end)
        ]

    def _rewards(self, image_ids: Sequence[Any], captions: list[list[Sampled]]) -> dict[str, Any]:
        return {name: reward(image_ids, captions) for name, reward in self.rewards.items()}

    def _weighted(self, rewards: Mapping[str, Any], like: Tensor) -> Tensor:
        """Return the weighted sum of rewards (B, k), with the dtype and device of `like`."""
        return like.new_tensor(sum(w * rewards[name] for name, w in self.config.reward.items()))


def build_rewards(
    config: Config, samples: Sequence[Sample], device: torch.device
) -> dict[str, Reward]:
    """Build the rewards of a configuration by name. Raises UserError.

    samples: the training split, for whose images rewards are computed. device: the device for
    rewards that run a model.
    """
    images = TrainingImages.from_samples(samples, config.image_root, str(device))
    return {name: load(REWARDS[name])(images, config) for name in config.reward}


@contextmanager
def _evaluation_mode(module: nn.Module) -> Iterator[None]:
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)
