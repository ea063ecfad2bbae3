"""Trains a captioner by REINFORCE on sampled captions, with a reward and a baseline.

The baseline is the reward of the greedy caption (SCST, Rennie et al. 2017, arXiv 1612.00563) or the
mean reward of the image's other samples (arXiv 2003.09971).
"""

from collections.abc import Mapping, Sequence
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
        is_training = captioner.training
        captioner.eval()
        encoded = captioner.encode(image)
        sampled = captioner.generate_from(encoded, self.sampling)
        if config.reward_baseline == "greedy":
            greedy = captioner.generate_from(encoded, self.greedy)
        # Generation has filled autocast's cache with casts of the weights that have no gradient.
        # Clear the cache, so that the gradient reaches the weights.
        torch.clear_autocast_cache()
        ids, temperature = sampled.token_ids.clone(), config.reward_temperature
        logprobs = captioner.log_likelihoods(encoded, ids, temperature).sum(-1)  # (B, k)
        captioner.train(is_training)
        objective_output = captioner(image, captions) if config.objective else None

        # Computed last, while a GPU still works on the likelihoods.
        rewards, parts = self._rewards(image_ids, sampled, logprobs)
        if config.reward_baseline == "greedy":
            baseline = self._rewards(image_ids, greedy, logprobs)[0].expand_as(rewards)
        else:
            baseline = (rewards.sum(1, keepdim=True) - rewards) / (rewards.size(1) - 1)
        loss = -((rewards - baseline) * logprobs).mean()

        parts["baseline"] = baseline.mean()
        texts = (text for group in sampled.captions for text in group)
        lengths = [float(count_words(text, config.language)) for text in texts]
        parts["length"] = logprobs.new_tensor(lengths).mean()
        if objective_output is not None:
            loss = loss + objective_output.loss
            parts.update(objective_output.parts)
        return ObjectiveOutput(loss, parts, torch.tensor(rewards.numel(), device=loss.device))

    def _rewards(
        self, image_ids: Sequence[Any], generated: Generated, like: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted sum of the rewards (B, k), and means for the log.

        like: a tensor with the dtype and the device of the result.
        """
        has_end = (generated.token_ids == self.captioner.tokenizer.end).any(-1).tolist()
        captions = [
            [Sampled(text, ended) for text, ended in zip(texts, flags)]
            for texts, flags in zip(generated.captions, has_end)
        ]
        values = {name: reward(image_ids, captions) for name, reward in self.rewards.items()}
        weights = self.config.reward
        total = like.new_tensor(sum(weights[name] * values[name] for name in weights))
        parts = {"reward": total.mean()}
        if len(values) > 1:
            parts.update({name: like.new_tensor(values[name]).mean() for name in weights})
        return total, parts


def build_rewards(
    config: Config, samples: Sequence[Sample], device: torch.device
) -> dict[str, Reward]:
    """Build the rewards of a configuration by name. Raises UserError.

    samples: the training split, for whose images rewards are computed. device: the device for
    rewards that run a model.
    """
    images = TrainingImages.from_samples(samples, config.image_root, str(device))
    return {name: load(REWARDS[name])(images, config) for name in config.reward}
