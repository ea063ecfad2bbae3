"""Training steps: compiled parts, memory that stays flat."""

import torch

from benchmarks.checks import relative_error
from benchmarks.training import COMPILED, OURS, Training, random_captions, random_images

MEGABYTE = 2**20


def test_a_compiled_step_has_the_gradient_of_an_eager_one(card):
    training = Training(True, with_peer=False, device=card.device)
    for part in training.ours.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
        if hasattr(part, "dropout") and isinstance(part.dropout, float):
            part.dropout = 0.0
    image, texts = random_images(training.ours, 3).to(card.device), random_captions(True, 3, 2)
    weights = list(training.ours.parameters())
    for autocast, most in ((False, 1e-3), (True, 3e-2)):
        found = []
        for contender in (OURS, COMPILED):
            with torch.autocast(card.device.type, torch.bfloat16, enabled=autocast):
                loss = training.loss(contender, image, texts)
            gradients = torch.autograd.grad(loss, weights, allow_unused=True)
            found.append(torch.cat([g.flatten() for g in gradients if g is not None]))
        error = relative_error(found[1], found[0])
        card.note(f"{'bf16' if autocast else 'fp32'}: the gradients differ by {error:.1e}")
        assert error < most, card.notes[-1]


def test_memory_is_flat_after_200_steps(card):
    """Every step has captions of another length. Memory may grow in the first tenth."""
    training = Training(card.tiny, with_peer=False, device=card.device)
    count, held = (8, []) if card.tiny else (200, [])
    image = random_images(training.ours, 4).to(card.device)
    for number in range(count):
        words = [[" ".join(["w9"] * (3 + (number * 7 + place) % 29))] for place in range(4)]
        with torch.autocast(card.device.type, torch.bfloat16):
            loss = training.loss(OURS, image, words)
        loss.backward()
        training.our_optimizer.step()
        training.our_optimizer.zero_grad(set_to_none=True)
        del loss
        if card.on_gpu:
            held.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    if card.on_gpu:
        (allocated, reserved), (at_end, reserved_at_end) = held[count // 10], held[-1]
        card.note(
            f"held after {count // 10} and {count} steps: {allocated / MEGABYTE:.0f} and "
            f"{at_end / MEGABYTE:.0f} MB, {reserved / MEGABYTE:.0f} and "
            f"{reserved_at_end / MEGABYTE:.0f} with what the allocator keeps"
        )
        assert abs(at_end - allocated) < MEGABYTE, card.notes[-1]
        assert reserved_at_end < 1.25 * reserved, card.notes[-1]
