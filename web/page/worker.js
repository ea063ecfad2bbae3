// Loads models and captions photos beside the page, so that the page stays responsive.

import { AutoImageProcessor, AutoModelForVision2Seq, Tensor, env } from "./vendor/transformers.min.js";
import { Captioner } from "./decode.js";
import { UserError, decode, normalise, resize } from "./pixels.js";

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
let loading = null; // the model that loads; messages about files of an earlier model are ignored

/** Returns the sentence that the page shows for an error. name: the model's. */
function errorText(error, name) {
  const text = String(error?.message ?? error);
  if (error instanceof UserError) return text;
  if (/memory|alloc|out of bounds|too large/i.test(text) || /^\d+$/.test(text)) {
    return `There is not enough memory for ${name}. Choose 8 bits, or close other tabs, and try again.`;
  }
  if (/locate|not found|fetch|JSON|protobuf|404|not whole|undefined|Can't create a session/i.test(text)) {
    return `The model ${name} could not be loaded: its folder models/${name} is not whole, or there is no connection. (${text.slice(0, 200)})`;
  }
  return `${name}: ${text.slice(0, 300)}`;
}

async function fetchJson(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new UserError(`The model's file ${path} is missing (${answer.status}).`);
  return answer.json();
}

/** Removes a model's files from the browser's cache, so that they are fetched again. */
async function removeFromCache(name) {
  const folder = new URL(`./models/${name}/`, location.href).href;
  for (const key of (await self.caches?.keys()) ?? []) {
    const cache = await caches.open(key);
    const requests = (await cache.keys()).filter(({ url }) => url.startsWith(folder));
    await Promise.all(requests.map((request) => cache.delete(request)));
  }
}

/** Loads a model, once. again: whether to fetch its files again. */
async function loadModel(name, dtype, device, again) {
  const key = `${name} ${dtype} ${device}`;
  if (loaded.has(key)) return loaded.get(key);
  if (again) await removeFromCache(name);
  loading = name;
  const sizes = new Map();
  const progress_callback = ({ status, file, loaded: bytes }) => {
    if (status !== "progress" || loading !== name) return;
    sizes.set(file, bytes);
    postMessage({ kind: "loading", name, bytes: [...sizes.values()].reduce((a, b) => a + b, 0) });
  };
  const options = { dtype, device, progress_callback };
  const [model, vocabulary, processor] = await Promise.all([
    AutoModelForVision2Seq.from_pretrained(name, options),
    fetchJson(`./models/${name}/tokenizer.json`),
    AutoImageProcessor.from_pretrained(name),
  ]);
  const { image_mean: mean, image_std: std, size } = processor;
  const entry = { captioner: new Captioner(model, vocabulary, Tensor), side: size.height, mean, std };
  loaded.set(key, entry);
  return entry;
}

async function captionPhoto({ id, file, pixels, models, damaged = [], dtype, device, settings }) {
  let image;
  try {
    image = pixels ? null : await decode(file);
  } catch (error) {
    postMessage({ kind: "failed", id, text: errorText(error, "this photo") });
    models = [];
  }
  const resized = new Map(); // side -> pixels, which models of the same size share
  for (const name of models) {
    let isLoaded = false;
    try {
      const { captioner, side, mean, std } = await loadModel(name, dtype, device, damaged.includes(name));
      isLoaded = true;
      postMessage({ kind: "encoding", id, name });
      if (image && !resized.has(side)) resized.set(side, resize(image.data, image.width, image.height, side));
      const input = pixels ?? normalise(resized.get(side), mean, std);
      const encoded = await captioner.encode(input, side);
      const found = await captioner.search(encoded, settings, (beam, done, all) =>
        postMessage({ kind: "words", id, name, words: captioner.scoredWords(beam), done, all }));
      const { tokens, score } = found;
      postMessage({ kind: "caption", id, name, text: captioner.text(tokens), words: captioner.scoredWords(found), tokens, score });
    } catch (error) {
      loading = null;
      const text = errorText(error, name);
      const noMemory = text.startsWith("There is not enough memory");
      // After the library has failed to make a session, it cannot make another one.
      const restart = noMemory || !(isLoaded || error instanceof UserError || /not found|JSON/.test(text));
      postMessage({ kind: "failed", id, name, text, restart, isDamaged: /JSON|protobuf/.test(text) });
      if (restart) return;
    }
  }
  postMessage({ kind: "done", id });
}

let queue = Promise.resolve();
addEventListener("message", ({ data }) => {
  queue = queue.then(() => captionPhoto(data));
});
