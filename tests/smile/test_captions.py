"""Several captions in a row, weights of tokens, rows without labels, and segments."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from smile import Objective, captions_of_turns, segments_from_position_ids, smile_loss
from smile.loss import IGNORE
from smile.packing import LONG_ROW
from tests.smile.hidden_states import SPECS, WAYS, LargestMade, example, gradients, words_of_labels


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    spec=st.sampled_from(["mle", "smile", "random", "reverse", "all", "all"]),
    first=st.booleans(),
    weighted=st.booleans(),
)
def test_packed_captions_are_padded_captions(seed, spec, first, weighted):
    torch.manual_seed(seed)
    shape = torch.randint(1, 4, ()).item(), torch.randint(1, 30, ()).item()
    labels = torch.randint(11, shape).masked_fill(torch.rand(shape) < torch.rand(()), IGNORE)
    segments = (torch.rand(shape) < 0.2).cumsum(1).int() * 2 + seed % 9 - 9
    weights = torch.rand(shape).double() * (torch.rand(shape) > 0.2) if weighted else None
    inputs = [torch.randn(*x, 4).double().requires_grad_() for x in (shape, (11,))]
    captions = {}
    for row, column in (labels != IGNORE).nonzero().tolist():
        caption = captions.setdefault((row, segments[row, column].item()), [])
        caption.append(row * shape[1] + column)
    longest = max(map(len, captions.values()), default=0) + 1
    places = torch.tensor([x + [-1] * (longest - len(x)) for x in captions.values()]).long()
    places = places.view(-1, longest)
    padded = labels.flatten()[places].masked_fill(places < 0, IGNORE)
    apart = [x if x is None else x.flatten(0, 1)[places] for x in (inputs[0], weights)]
    objective = Objective(SPECS[spec], 0.1, first, random_subset_size=3)
    with words_of_labels():
        expected = objective(apart[0] @ inputs[1].T, padded, None, apart[1], "none")
        how = {"segments": segments, "weights": weights, "reduction": "none"}
        outputs = [way(objective, [*inputs, None], labels, **how) for way in WAYS]
    factors, scored = torch.rand(labels.numel()).double(), places >= 0
    wanted = torch.autograd.grad((expected.loss * factors[places]).sum(), inputs)
    for output in outputs:
        losses = output.loss.flatten()
        found = torch.autograd.grad((losses * factors).sum(), inputs)
        assert output.tokens == pytest.approx(expected.tokens.item())
        torch.testing.assert_close(losses[places[scored]], expected.loss[scored])
        torch.testing.assert_close(found, wanted)


def test_a_weight_of_0_is_no_label_and_one_of_2_is_twice():
    inputs, labels = example()
    logits, twice = F.linear(*inputs), [0, 1, 2, 3, 4, 4]
    without, weights = labels.clone(), torch.ones(5, 7)
    without[0, [0, 3]], weights[0, [0, 3]], weights[4] = IGNORE, 0, 2
    objective = Objective(SPECS["all"], 0.1)
    with words_of_labels():
        expected = objective(logits[twice], without[twice])
        for each, given in ((labels, weights), (without, weights[:, 1])):
            found = objective(logits, each, weights=given)
            torch.testing.assert_close(found, expected, check_dtype=False)


@pytest.mark.parametrize("how", [{}, {"reduction": "none"}, {"segments": 0}, {"weights": 1.0}])
@pytest.mark.parametrize("shape", [(2, 0), (0, 3), (2, 5), (2, LONG_ROW)])
def test_without_labels_the_loss_is_0_and_its_gradient_too(shape, how):
    hidden = torch.randn(*shape, 6, dtype=torch.float64, requires_grad=True)
    inputs, labels = [hidden, *example()[0][1:]], torch.full(shape, IGNORE)
    how = {k: v if k == "reduction" else torch.full(shape, v) for k, v in how.items()}
    for way in WAYS:
        output = way(Objective(SPECS["all"], 0.1, pad_token_id=0), inputs, labels, **how)
        assert output.loss.eq(0).all() and output.tokens == 0
        assert all(part.eq(0).all() for part in output.parts.values())
        assert all(x.eq(0).all() for x in gradients(output.loss, inputs))


def test_a_long_caption_does_not_lengthen_the_short_ones_of_its_row():
    """Blocks of 100 captions of 3 words and of one of 100; together they would be 101 by 100."""
    segments = torch.cat([torch.arange(100).repeat_interleave(3), torch.full((100,), 100)])[None]
    with LargestMade() as made:
        smile_loss(torch.randn(1, 400, 11), torch.randint(11, (1, 400)), segments=segments)
    assert made.elements <= 100 * 100


@pytest.mark.parametrize("first", [0, 1])
def test_a_segment_begins_where_positions_restart(first):
    position_ids = torch.tensor([0, 1, 2, 0, 0, 1]) + first
    text_first = torch.stack([position_ids, *[torch.zeros_like(position_ids)] * 3])[:, None]
    for positions in (position_ids[None], position_ids, text_first):
        assert segments_from_position_ids(positions).tolist() == [[0, 0, 0, 1, 2, 2]]


def test_positions_of_an_image_are_no_new_caption():
    """Time, height and width of one word, an image of four tokens and two words, twice."""
    one = torch.tensor([[0, 1, 1, 1, 1, 3, 4], [0, 1, 1, 2, 2, 3, 4], [0, 1, 2, 1, 2, 3, 4]])
    grid = torch.cat([one, one], 1)[:, None]
    assert segments_from_position_ids(grid).tolist() == [[0] * 7 + [1] * 7]


def test_each_turn_is_a_caption():
    labels = torch.tensor([[-100, 5, 6, -100, -100, 7, 7, 8], [3, -100, 3, 3, -100, -100, 4, -100]])
    segments = torch.tensor([[0, 0, 0, 0, 0, 0, 1, 1], [0] * 8])
    turns = captions_of_turns(labels)
    assert turns[0, 1] == turns[0, 2] != turns[0, 5] == turns[0, 6] == turns[0, 7]
    assert len({turns[1, 0].item(), turns[1, 2].item(), turns[1, 6].item()}) == 3
    turns = captions_of_turns(labels, segments)
    assert turns[0, 5] != turns[0, 6] == turns[0, 7]
