// Loads models and captions photos beside the page, so that the page stays responsive.

import { AutoImageProcessor, AutoModelForVision2Seq, Tensor, env } from "./vendor/transformers.min.js";
import { Captioner } from "./decode.js";
import { MOST_PIXELS, normalise, resize, sizeInHeader } from "./pixels.js";

env.allowRemoteModels = false;
env.allowLocalModels = true; // below; browsers read none by default
env.localModelPath = "./models/";
env.useBrowserCache = false; // the service worker keeps the files
env.useWasmCache = false;
const wasm = env.backends.onnx.wasm;
const runtime = new URL("./vendor/ort-wasm-simd-threaded.asyncify", import.meta.url).href;
wasm.wasmPaths = { mjs: `${runtime}.mjs`, wasm: `${runtime}.wasm` };
wasm.numThreads = self.crossOriginIsolated ? Math.min(navigator.hardwareConcurrency, 8) : 1;

const loaded = new Map();

/** An error whose message is a sentence for the page. */
class Sentence extends Error {}

function sentence(error, name) {
  const text = String(error?.message ?? error);
  if (error instanceof Sentence) return text;
  if (/memory|alloc|out of bounds|too large/i.test(text) || /^\d+$/.test(text)) {
    return `There is not enough memory for ${name}. Choose 8 bits, or close other tabs, and try again.`;
  }
  if (/locate|fetch|JSON|protobuf|404|not whole|undefined|Can't create a session/i.test(text)) {
    return `The model ${name} could not be loaded: its folder models/${name} is not whole. (${text.slice(0, 200)})`;
  }
  return `${name}: ${text.slice(0, 300)}`;
}

async function json(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Sentence(`The model's file ${path} is missing (${answer.status}).`);
  return answer.json();
}

async function load(name, dtype, device) {
  const key = `${name} ${dtype} ${device}`;
  if (loaded.has(key)) return loaded.get(key);
  const sizes = new Map();
  const progress_callback = ({ status, file, loaded: bytes }) => {
    if (status !== "progress") return;
    sizes.set(file, bytes);
    postMessage({ kind: "loading", name, bytes: [...sizes.values()].reduce((a, b) => a + b, 0) });
  };
  const options = { dtype, device, progress_callback };
  const [model, vocabulary, processor] = await Promise.all([
    AutoModelForVision2Seq.from_pretrained(name, options),
    json(`./models/${name}/tokenizer.json`),
    AutoImageProcessor.from_pretrained(name),
  ]);
  const { image_mean: mean, image_std: std, size } = processor;
  const one = { captioner: new Captioner(model, vocabulary, Tensor), side: size.height, mean, std };
  loaded.set(key, one);
  return one;
}

async function decoded(file) {
  const head = new Uint8Array(await file.slice(0, 1 << 20).arrayBuffer());
  const check = (width, height) => {
    if (width * height <= MOST_PIXELS) return;
    const millions = Math.round((width * height) / 1e6);
    throw new Sentence(`The photo has ${millions} megapixels; at most ${MOST_PIXELS / 1e6} are read. Make it smaller.`);
  };
  const size = sizeInHeader(head);
  if (size) check(...size);
  let bitmap;
  try {
    bitmap = await createImageBitmap(file, { colorSpaceConversion: "none", premultiplyAlpha: "none" });
  } catch {
    throw new Sentence(`${file.name || "The file"} is not an image that this browser can read.`);
  }
  const { width, height } = bitmap;
  check(width, height);
  const canvas = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  canvas.drawImage(bitmap, 0, 0);
  bitmap.close();
  return canvas.getImageData(0, 0, width, height);
}

async function caption({ id, file, pixels, models, dtype, device, settings }) {
  let image;
  try {
    image = pixels ? null : await decoded(file);
  } catch (error) {
    return postMessage({ kind: "failed", id, text: sentence(error, "this photo") });
  }
  const resized = new Map(); // by side: models of one size share it
  for (const name of models) {
    try {
      const { captioner, side, mean, std } = await load(name, dtype, device);
      postMessage({ kind: "encoding", id, name });
      if (image && !resized.has(side)) resized.set(side, resize(image.data, image.width, image.height, side));
      const input = pixels ?? normalise(resized.get(side), mean, std);
      const encoded = await captioner.encode(input, side);
      const found = await captioner.search(encoded, settings, (beam, done, all) =>
        postMessage({ kind: "words", id, name, words: captioner.scored(beam), done, all }));
      const { tokens, score } = found;
      postMessage({ kind: "caption", id, name, text: captioner.text(tokens), words: captioner.scored(found), tokens, score });
    } catch (error) {
      const text = sentence(error, name);
      postMessage({ kind: "failed", id, name, text, memory: text.startsWith("There is not enough memory") });
    }
  }
  postMessage({ kind: "done", id });
}

let queue = Promise.resolve();
addEventListener("message", ({ data }) => {
  queue = queue.then(() => caption(data));
});
