"""Training steps: compiled parts, memory that stays flat."""

import copy

import torch

from benchmarks.captioners import our_captioner, random_images
from benchmarks.training import random_captions
from tests.gpu.card import DEVICE, REHEARSAL, relative_error


def test_a_compiled_step_has_the_gradient_of_an_eager_one():
    eager = our_captioner(True).eval().to(DEVICE)  # without dropout
    compiled = copy.deepcopy(eager)
    compiled.compile_parts()
    image, texts = random_images(eager, 3).to(DEVICE), random_captions(True, 3, 2)
    for autocast, most in ((False, 1e-3), (True, 3e-2)):
        found = []
        for captioner in (eager, compiled):
            with torch.autocast(DEVICE.type, torch.bfloat16, enabled=autocast):
                loss = captioner(image, texts).loss
            gradients = torch.autograd.grad(loss, [*captioner.parameters()], allow_unused=True)
            found.append(torch.cat([g.flatten() for g in gradients if g is not None]))
        error = relative_error(found[1], found[0])
        print(f"autocast {autocast}: the gradients differ by {error:.1e}")
        assert error < most


def test_memory_is_flat_after_200_steps():
    """Every step has captions of another length. Memory may grow in the first tenth."""
    captioner = our_captioner(REHEARSAL).train().to(DEVICE)
    optimizer = torch.optim.AdamW(captioner.parameters(), fused=True)
    count, held = (8, []) if REHEARSAL else (200, [])
    image = random_images(captioner, 4).to(DEVICE)
    for number in range(count):
        words = [[" ".join(["w9"] * (3 + (number * 7 + place) % 29))] for place in range(4)]
        with torch.autocast(DEVICE.type, torch.bfloat16):
            captioner(image, words).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if not REHEARSAL:
            held.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    if not REHEARSAL:
        (allocated, reserved), (at_end, reserved_at_end) = held[count // 10], held[-1]
        print(f"bytes of a tenth of the steps and of all: {allocated, reserved}, {held[-1]}")
        assert abs(at_end - allocated) < 2**20
        assert reserved_at_end < 1.25 * reserved
