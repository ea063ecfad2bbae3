// Captions images in Node with the page's decoding, and prints a JSON line for each image.
//
//   node web/captions.mjs FOLDER PIXELS '{"num_beams": 3}' [DTYPE]
//
// FOLDER: written by `python -m BLIP.export --layout transformers.js`. PIXELS: a file of float32
// (N, 3, S, S). From /dev/stdin, each image is captioned as soon as it has arrived.

import { openSync, readFileSync, readSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { AutoModelForVision2Seq, Tensor, env } from "@huggingface/transformers";
import { Captioner } from "./page/decode.js";

const [folder, pixels, settings = "{}", dtype = "fp32"] = process.argv.slice(2);
env.allowRemoteModels = false;
env.localModelPath = dirname(resolve(folder));
const readJson = (name) => JSON.parse(readFileSync(join(folder, name), "utf8"));
const model = await AutoModelForVision2Seq.from_pretrained(resolve(folder).split("/").at(-1), { dtype });
const captioner = new Captioner(model, readJson("tokenizer.json"), Tensor);
const side = readJson("preprocessor_config.json").size.height;
const file = openSync(pixels);
const buffer = new Uint8Array(4 * 3 * side * side);

/** Reads the next image into the buffer. Returns whether there was one. */
function readImage() {
  for (let at = 0; at < buffer.length;) {
    const count = readSync(file, buffer, at, buffer.length - at);
    if (!count) return false;
    at += count;
  }
  return true;
}

while (readImage()) {
  const start = performance.now();
  const image = await captioner.encode(new Float32Array(buffer.buffer.slice(0)), side);
  const { tokens, logprobs, score } = await captioner.search(image, JSON.parse(settings));
  const seconds = (performance.now() - start) / 1000;
  console.log(JSON.stringify({ text: captioner.text(tokens), tokens, logprobs, score, seconds }));
}
