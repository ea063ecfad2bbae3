// Beam search over the two sessions of a model: transformers.js has no beams, and its num_beams
// silently decodes greedily. The semantics are those of decoding/beam.py, one image at a time.

const NOT_STARTED = -1e9; // all beams start from the same prompt: only the first may continue it
const SPECIAL = new Set(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[DEC]", "[ENC]"]);
// BERT's tokenizer removes the spaces before these.
const NO_SPACE_BEFORE = [" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're"];

/** Replaces the logits of a row by log-probabilities, in place. Returns the row. */
function logSoftmax(row) {
  let max = -Infinity, sum = 0;
  for (const x of row) if (x > max) max = x;
  for (const x of row) sum += Math.exp(x - max);
  const shift = max + Math.log(sum);
  for (let i = 0; i < row.length; i++) row[i] -= shift;
  return row;
}

/** Returns the `count` best continuations of all beams, best first; ties by beam, then by word. */
function bestContinuations(rows, scores, count, banned) {
  const top = [];
  rows.forEach((row, beam) => {
    for (let word = 0; word < row.length; word++) {
      const total = word === banned ? -Infinity : row[word] + scores[beam];
      if (top.length === count && total <= top[count - 1].total) continue;
      let at = top.length;
      while (at > 0 && top[at - 1].total < total) at--;
      top.splice(at, 0, { total, beam, word });
      if (top.length > count) top.pop();
    }
  });
  return top;
}

/** Returns a tensor (R, ...) with its rows in the order of `beams`. */
function reorderRows(tensor, beams, Tensor) {
  const size = tensor.data.length / tensor.dims[0];
  const data = new tensor.data.constructor(beams.length * size);
  beams.forEach((beam, i) => data.set(tensor.data.subarray(beam * size, (beam + 1) * size), i * size));
  return new Tensor(tensor.type, data, [beams.length, ...tensor.dims.slice(1)]);
}

/** Captions images with a loaded model. */
export class Captioner {
  /** model: of AutoModelForVision2Seq. vocabulary: the parsed tokenizer.json. Tensor: the library's class. */
  constructor(model, vocabulary, Tensor) {
    Object.assign(this, { Tensor, encoder: model.sessions.model, decoder: model.sessions.decoder_model_merged });
    this.words = [];
    for (const [word, id] of Object.entries(vocabulary.model.vocab)) this.words[id] = word;
    for (const { id, content } of vocabulary.added_tokens) this.words[id] = content;
    const settings = model.generation_config;
    this.prompt = settings.decoder_start_token_id[0];
    this.end = [settings.eos_token_id].flat()[0];
    this.longest = model.config.max_position_embeddings;
  }

  /** pixels: float32 (1, 3, side, side). */
  async encode(pixels, side) {
    const { ort_tensor } = new this.Tensor("float32", pixels, [1, 3, side, side]);
    return (await this.encoder.run({ pixel_values: ort_tensor })).last_hidden_state;
  }

  /** tokens: R rows of n. past: the cached tensors by name, or null. Returns R rows of logits, and the new cache. */
  async step(tokens, past, image) {
    const { Tensor, decoder } = this;
    const ids = BigInt64Array.from(tokens.flat(), BigInt);
    const input = new Tensor("int64", ids, [tokens.length, tokens[0].length]);
    const feeds = { input_ids: input.ort_tensor, encoder_hidden_states: image };
    for (const { name, type, shape } of decoder.inputMetadata) {
      if (!name.startsWith("past")) continue;
      const empty = [tokens.length, shape[1], 0, shape[3]];
      feeds[name] = (past?.[name] ?? new Tensor(type, new Float32Array(0), empty)).ort_tensor;
    }
    const { logits, ...present } = await decoder.run(feeds);
    const size = logits.data.length / tokens.length;
    const rows = tokens.map((_, i) => logits.data.slice(i * size, (i + 1) * size));
    const renamed = Object.entries(present).map(([name, x]) => [
      name.replace("present", "past_key_values"),
      x,
    ]);
    return { rows, past: Object.fromEntries(renamed) };
  }

  /**
   * Returns the best caption of an encoded image: its tokens, with the prompt and the end token, and
   * the log-probability of each token after the prompt. onWord: called after each step.
   */
  async search(image, { num_beams = 3, max_length = 20, min_length = 5, length_penalty = 1 }, onWord) {
    const { prompt, end, Tensor } = this;
    if (!(prompt.length < max_length && max_length <= this.longest)) {
      throw new RangeError(`The longest caption must have ${prompt.length + 1} to ${this.longest} tokens.`);
    }
    let { rows, past } = await this.step([prompt], null, image);
    rows = Array(num_beams).fill(logSoftmax(rows[0]));
    let scores = [0, ...Array(num_beams - 1).fill(NOT_STARTED)];
    let beams = Array(num_beams).fill({ tokens: prompt, logprobs: [] });
    let order = Array(num_beams).fill(0); // the first step had one row
    let finished = [];
    const extended = ({ beam, word }) => ({
      tokens: [...beams[beam].tokens, word],
      logprobs: [...beams[beam].logprobs, rows[beam][word]],
    });
    for (let length = prompt.length; length < max_length; length++) {
      const top = bestContinuations(rows, scores, 2 * num_beams, length < min_length ? end : -1);
      const normalised = (total) => total / length ** length_penalty;
      for (const continuation of top.slice(0, num_beams)) {
        if (continuation.word !== end || !Number.isFinite(continuation.total)) continue;
        finished.push({ ...extended(continuation), score: normalised(continuation.total) });
      }
      finished = finished.sort((a, b) => b.score - a.score).slice(0, num_beams);
      const full = finished.length === num_beams;
      if (full && finished.at(-1).score >= normalised(top[0].total)) return finished[0];
      const kept = top.filter(({ word }) => word !== end).slice(0, num_beams);
      const extendedBeams = kept.map(extended); // needs the old `beams` and `rows`
      scores = kept.map(({ total }) => total);
      order = kept.map(({ beam }) => order[beam]);
      beams = extendedBeams;
      onWord?.(beams[0], length + 1 - prompt.length, max_length - prompt.length);
      if (length + 1 === max_length) break;
      past = Object.fromEntries(
        Object.entries(past).map(([name, x]) => [name, reorderRows(x, order, Tensor)]),
      );
      ({ rows, past } = await this.step(kept.map(({ word }) => [word]), past, image));
      rows.forEach(logSoftmax);
      order = order.map((_, i) => i);
    }
    finished.push(...beams.map((beam, i) => ({ ...beam, score: scores[i] / max_length ** length_penalty })));
    return finished.reduce((a, b) => (b.score > a.score ? b : a));
  }

  /** Returns the text of tokens, without special tokens and the prompt. */
  text(tokens) {
    const decoded = (ids) => {
      const text = ids.map((id) => this.words[id]).filter((word) => !SPECIAL.has(word)).join(" ");
      return NO_SPACE_BEFORE.reduce((t, s) => t.replaceAll(s, s.trim()), text.replaceAll(" ##", ""));
    };
    const start = decoded(this.prompt);
    return decoded(tokens).slice(start.length + (start ? 1 : 0));
  }

  /** Returns the words of a caption. The probability of a word is the product of its pieces'. */
  scoredWords({ tokens, logprobs }) {
    const words = [];
    tokens.slice(this.prompt.length).forEach((id, i) => {
      const word = this.words[id], probability = Math.exp(logprobs[i]);
      if (SPECIAL.has(word)) return;
      if (!word.startsWith("##") || !words.length) words.push({ word, probability });
      else {
        words.at(-1).word += word.slice(2);
        words.at(-1).probability *= probability;
      }
    });
    return words;
  }
}
