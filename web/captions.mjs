// Captions in Node, with the page's own decoding: one JSON line an image.
//
//   node web/captions.mjs FOLDER PIXELS '{"num_beams": 3}' [DTYPE]
//
// FOLDER: of `python -m BLIP.export --layout transformers.js`. PIXELS: float32 (N, 3, S, S), raw.

import { readFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { AutoModelForVision2Seq, Tensor, env } from "@huggingface/transformers";
import { Captioner } from "./page/decode.js";

const [folder, pixels, settings = "{}", dtype = "fp32"] = process.argv.slice(2);
env.allowRemoteModels = false;
env.localModelPath = dirname(resolve(folder));
const read = (name) => JSON.parse(readFileSync(join(folder, name), "utf8"));
const model = await AutoModelForVision2Seq.from_pretrained(resolve(folder).split("/").at(-1), { dtype });
const captioner = new Captioner(model, read("tokenizer.json"), Tensor);
const side = read("preprocessor_config.json").size.height;
const bytes = readFileSync(pixels);
const all = new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
const size = 3 * side * side;
for (let at = 0; at < all.length; at += size) {
  const start = performance.now();
  const image = await captioner.encode(all.slice(at, at + size), side);
  const { tokens, logprobs, score } = await captioner.search(image, JSON.parse(settings));
  const seconds = (performance.now() - start) / 1000;
  console.log(JSON.stringify({ text: captioner.text(tokens), tokens, logprobs, score, seconds }));
}
