"""Perplexity against its definition in float64; tokens of CLIP and GPT-2 against transformers."""

import math

import pytest
import torch
from tokenizers import Tokenizer, models, processors
from transformers import GPT2LMHeadModel, GPT2TokenizerFast

from captioning.metrics.bootstrap import mean_estimate
from captioning.metrics.evaluator import CaptionSet, Settings
from captioning.metrics.model_files import BpeTokenizer, find_model
from captioning.metrics.perplexity import LanguageModel, Perplexity
from captioning.runtime.errors import UserError

TEXTS = [
    "the cat and the dog",
    "x",
    "a man riding a horse on a beach at sunset",
    "",
    " \n",
    "the the the the the the the the the the the the the the the the the the the the the the",
    "a 😀 !",
    "a long, long caption: " + "the cat " * 30,
]
EMPTY = [3, 4]


def evaluate(folder, texts):
    captions = dict(enumerate(texts))
    evaluator = Perplexity(Settings(batch_size=3), ppl_model=str(folder))
    return evaluator.evaluate(CaptionSet(captions, {number: ["a"] for number in captions}))


def naive(folder, text):
    model = GPT2LMHeadModel.from_pretrained(str(folder)).double().eval()
    tokens = LanguageModel(str(folder))
    (ids,), _ = tokens.encode([text])
    assert ids[0] == model.config.vocab_size - 1  # <|endoftext|>
    total = 0.0
    for position in range(1, len(ids)):
        logits = model(torch.tensor([ids[:position]])).logits[0, -1]
        total -= torch.log_softmax(logits, 0)[ids[position]].item()
    return math.exp(total / (len(ids) - 1))


def test_values_are_those_of_the_definition(gpt2_folder):
    result = evaluate(gpt2_folder, TEXTS)
    each = dict(enumerate(result.per_caption["PPL"]))
    assert [each.pop(number) for number in EMPTY] == [None, None]
    known = [naive(gpt2_folder, TEXTS[number]) for number in each]
    assert [*each.values()] == pytest.approx(known, rel=1e-5)
    assert max(known) > 1.5 * min(known)
    assert result.metrics == {"PPL": mean_estimate([*each.values()])}
    assert result.settings == {"ppl_model": str(gpt2_folder), "ppl_truncated": 1, "ppl_empty": 2}

    result = evaluate(gpt2_folder, ["", " "])
    assert result.skipped == {"PPL": "no caption has a word"} and not result.metrics
    assert result.settings["ppl_empty"] == 2
    assert result.per_caption["PPL"] == [None, None]


def test_missing_weights_are_reported_before():
    reasons = Perplexity().unavailable()
    assert "ppl_model: found no config.json of gpt2 here or on the hub: put" in reasons["PPL"]


TOKENIZED = [
    "",
    "a photo of the cat and the dog's ball",
    "The CAT, 2 dogs... it's   12:30!?",
    "\tcafé naïve \u2014 ни 中文 😀\n",
    "I'll don't they're 's",
]


# Of CLIPTokenizerFast in transformers 5.23.0, which equals OpenAI's; 4.15.0 splits words otherwise.
OF_CLIP = [
    [],
    [320, 79, 71, 78, 83, 334, 78, 325, 513, 517, 515, 513, 519, 520, 65, 64, 75, 331],
    [513, 517, 267, 273, 518, 70, 338, 13, 13, 269, 72, 339, 520, 272, 273, 281, 274, 271, 0, 286],
    [
        *(516, 69, 127, 358, 77, 64, 127, 107, 85, 324, 158, 222, 498, 140, 121, 140, 372, 160),
        *(116, 255, 162, 244, 485, 172, 253, 246, 478),
    ],
    [328, 6, 75, 331, 518, 333, 6, 339, 512, 68, 344, 6, 81, 324, 520],
]


def test_tokens_are_those_of_transformers(clip_folder, gpt2_folder, tmp_path):
    files = find_model("clip_model", str(clip_folder))
    clip = BpeTokenizer(files, style="clip")
    assert clip.encode(TOKENIZED) == OF_CLIP
    assert clip.encode(["a \ud83d cat"]) == clip.encode(["a ? cat"])  # no Unicode
    theirs = GPT2TokenizerFast(*(str(gpt2_folder / name) for name in ("vocab.json", "merges.txt")))
    gpt2 = BpeTokenizer(find_model("ppl_model", str(gpt2_folder)), style="gpt2")
    assert gpt2.encode(TOKENIZED) == [theirs(text)["input_ids"] for text in TOKENIZED]
    # In one file, with special tokens and truncation, as transformers saves it.
    names, end = (str(files.vocabulary), str(files.merges)), "<|endoftext|>"
    whole = Tokenizer(models.BPE.from_file(*names, end_of_word_suffix="</w>"))
    whole.add_special_tokens([end])
    whole.post_processor = processors.TemplateProcessing(f"$A {end}", None, [(end, 0)])
    whole.enable_truncation(3)
    whole.save(str(tmp_path / "tokenizer.json"))
    one = BpeTokenizer(files._replace(vocabulary=tmp_path / "tokenizer.json", merges=None), "clip")
    assert one.encode(TOKENIZED) == OF_CLIP and one.special(end) == clip.special(end)


def test_a_file_that_is_no_vocabulary_or_lacks_a_token(clip_folder, tmp_path):
    files = find_model("clip_model", str(clip_folder))
    wrong = tmp_path / "vocab.json"
    for content, merges in (("[1]", files.merges), ('{"a": 0}', files.merges), ("{}", None)):
        wrong.write_text(content)
        with pytest.raises(UserError, match="holds no BPE"):
            BpeTokenizer(files._replace(vocabulary=wrong, merges=merges), style="clip")
    with pytest.raises(UserError, match=r"lacks <.other.>: download it again"):
        BpeTokenizer(files, style="clip").special("<|other|>")
