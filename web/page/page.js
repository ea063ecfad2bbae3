// The page: what a visitor chooses and sees. worker.js does the work.

import { checkHeader } from "./pixels.js";

const $ = (selector) => document.querySelector(selector);
const showStatus = (text) => ($("#status").textContent = text);
const MEGABYTE = 2 ** 20;
// A module whose function returns a vector: only a browser with wasm SIMD accepts it.
const SIMD = [0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 8, 1, 6, 0, 65, 0, 253, 15, 11];
const PRECISIONS = { fp32: "32 bits", fp16: "16 bits", q8: "8 bits" };

const damaged = new Set(); // names of models whose kept files cannot be read
let worker, models = [], photo = null;
let request, requestId = 0; // the latest message to the worker

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function startWorker() {
  worker?.terminate();
  worker = new Worker("worker.js", { type: "module" });
  worker.addEventListener("message", ({ data }) => receive(data));
  worker.addEventListener("error", (event) => {
    event.preventDefault();
    worker = null;
    const reason = event.message || "it could not be loaded";
    receive({ kind: "failed", id: requestId, text: `The captioner stopped (${reason}). It starts again with the next caption.` });
    receive({ kind: "done", id: requestId });
  });
}

function sendRequest(names) {
  worker.postMessage({ ...request, models: names, damaged: [...damaged] });
}

function cardOf(name) {
  return document.getElementById(`card-${name}`);
}

function updateCard(name, parts) {
  const card = cardOf(name);
  for (const [part, value] of Object.entries(parts)) {
    const target = card.querySelector(`.${part}`);
    if (part === "bar") {
      target.hidden = value === null;
      if (value !== null) target.value = value;
    } else target.replaceChildren(...[value].flat());
  }
}

function wordItems(words) {
  return words.map(({ word, probability }) => {
    const percent = `${Math.round(probability * 100)} %`;
    const item = element("li", {}, word, element("small", {}, percent));
    item.style.setProperty("--share", percent.replace(" ", ""));
    return item;
  });
}

/** Receive a message of the worker. Answers to an earlier request are dropped. */
function receive({ kind, id, name, ...more }) {
  if (more.isDamaged) damaged.add(name);
  if (more.restart) {
    const names = models.map((model) => model.name);
    startWorker();
    sendRequest(id === requestId ? names.slice(names.indexOf(name) + 1) : names);
  }
  if (id === undefined || id === requestId) handlers[kind]({ id, name, ...more });
}

/** What to do with each kind of message. name: a model's. */
const handlers = {
  loading({ name, bytes }) {
    const total = modelOf(name).bytes[$("[name=dtype]").value];
    const [have, of] = [bytes, total].map((count) => (count / MEGABYTE).toFixed(1));
    updateCard(name, { state: `Loading: ${have} of ${of} MB`, bar: Math.min(1, bytes / total) });
  },

  encoding({ name }) {
    updateCard(name, { state: "Looking at the photo", bar: 0 });
  },

  words({ name, words, done, all }) {
    updateCard(name, { state: "Writing", bar: done / all, words: wordItems(words) });
  },

  caption({ name, text, words, tokens }) {
    updateCard(name, { state: "", bar: null, text, words: wordItems(words) });
    cardOf(name).dataset.tokens = tokens.join(" ");
    damaged.delete(name);
    showStatus(`${modelOf(name).label}: ${text}`);
  },

  /** Without a name, all models have failed, because the photo cannot be read. */
  failed({ name, text }) {
    for (const model of name ? [modelOf(name)] : models) {
      updateCard(model.name, { state: element("span", { className: "failed" }, text), bar: null });
    }
    showStatus(text);
  },

  done({ id }) {
    $("#caption").disabled = false;
    document.body.dataset.done = id;
  },
};

function modelOf(name) {
  return models.find((model) => model.name === name);
}

function captionPhoto() {
  if (!photo || !$("#settings").reportValidity()) return;
  const { dtype, device, ...lengths } = Object.fromEntries(new FormData($("#settings")));
  const settings = Object.fromEntries(Object.entries(lengths).map(([key, text]) => [key, Number(text)]));
  requestId += 1;
  $("#caption").disabled = true;
  request = { id: requestId, file: photo, dtype, device, settings };
  if (!worker) startWorker();
  for (const { name } of models) updateCard(name, { state: "Waiting", bar: 0, text: "", words: [] });
  showStatus("");
  sendRequest(models.map(({ name }) => name));
}

async function choosePhoto(file) {
  if (!file) return showStatus("There is no photo in what was dropped or pasted.");
  photo = file;
  // A photo with too many pixels is not shown: decoding it could take all memory.
  const shown = await checkHeader(file).then(() => URL.createObjectURL(file), () => "data:,");
  if (photo !== file) return;
  const image = $("#photo");
  URL.revokeObjectURL(image.src);
  image.src = shown;
  image.alt = `The photo ${file.name ?? ""}`;
  image.hidden = false;
  image.onerror = () => (image.hidden = true);
  $("#hint").hidden = true;
  captionPhoto();
}

async function takePhoto() {
  const camera = $("#camera");
  if (!camera.srcObject) {
    try {
      camera.srcObject = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    } catch {
      return showStatus("There is no camera, or the browser may not use it. Cameras need https or this machine.");
    }
    camera.hidden = false;
    $("#photo").hidden = $("#hint").hidden = true;
    $("#take").textContent = "Take it now";
    return camera.play();
  }
  const canvas = new OffscreenCanvas(camera.videoWidth, camera.videoHeight);
  canvas.getContext("2d").drawImage(camera, 0, 0);
  camera.srcObject.getTracks().forEach((track) => track.stop());
  camera.srcObject = null;
  camera.hidden = true;
  $("#take").textContent = "Take a photo";
  const blob = await canvas.convertToBlob();
  choosePhoto(new File([blob], "from the camera"));
}

function addListeners() {
  $("#file").addEventListener("change", ({ target }) => {
    if (target.files.length) choosePhoto(target.files[0]);
    target.value = ""; // so that the same photo can be chosen again
  });
  $("#take").addEventListener("click", takePhoto);
  $("#settings").addEventListener("submit", (event) => {
    event.preventDefault();
    captionPhoto();
  });
  addEventListener("paste", ({ clipboardData }) => {
    const file = [...clipboardData.files][0];
    if (file || !clipboardData.getData("text")) choosePhoto(file);
  });
  addEventListener("dragover", (event) => {
    event.preventDefault();
    $("#drop").classList.add("over");
  });
  addEventListener("dragleave", () => $("#drop").classList.remove("over"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    $("#drop").classList.remove("over");
    choosePhoto(event.dataTransfer.files[0]);
  });
}

/** Resolve once the service worker controls the page: it keeps only files that are fetched after that. */
async function startServiceWorker() {
  await navigator.serviceWorker.register("sw.js");
  await navigator.serviceWorker.ready;
  if (navigator.serviceWorker.controller) return;
  await new Promise((go) => {
    navigator.serviceWorker.addEventListener("controllerchange", go, { once: true });
    setTimeout(go, 3000); // a page that is reloaded with Shift never gets a controller
  });
}

async function main() {
  if (!WebAssembly.validate(new Uint8Array(SIMD))) {
    return showStatus("This browser has no WebAssembly SIMD, which the captioner needs. Please update it.");
  }
  await startServiceWorker().catch(() => showStatus("The models cannot be kept for use offline: that needs https or this machine."));
  try {
    models = (await (await fetch("models.json")).json()).models;
  } catch {
    return showStatus("models.json is missing or damaged: build the folder again.");
  }
  $("#cards").replaceChildren(...models.map(({ name, label }) =>
    element("article", { className: "card", id: `card-${name}` },
      element("h2", {}, label),
      element("p", { className: "state" }, "Waiting for a photo"),
      element("progress", { className: "bar", max: 1, hidden: true, ariaLabel: `Progress of ${label}` }),
      element("p", { className: "text" }),
      element("ul", { className: "words", ariaLabel: `Words of ${label} with their probabilities` }))));
  for (const [value, text] of Object.entries(PRECISIONS)) {
    const bytes = models.reduce((sum, model) => sum + model.bytes[value], 0);
    $("[name=dtype]").append(element("option", { value }, `${text}, ${Math.ceil(bytes / MEGABYTE)} MB`));
  }
  if (await navigator.gpu?.requestAdapter().catch(() => null)) {
    $("[name=device]").append(element("option", { value: "webgpu" }, "graphics card (untested)"));
  }
  addListeners();
  $("#caption").disabled = true;
  document.body.dataset.ready = "";
}

main();
