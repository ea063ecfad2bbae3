// The page: captions the photos that a visitor chooses, drops or pastes, one after the other.
// worker.js runs the models.

const MAX_PIXELS = 50_000_000; // a browser needs four bytes for each
const $ = (selector) => document.querySelector(selector);
const models = fetch("models.json").then((answer) => answer.json());
let worker = null;
let queue = Promise.resolve();

function showStatus(text) {
  $("#status").textContent = text;
}

/** Returns the worker's caption. request: see worker.js. Rejects with an Error for the visitor. */
function requestCaption(request) {
  worker ??= new Worker("worker.js", { type: "module" });
  const answer = new Promise((resolve, reject) => {
    worker.onmessage = ({ data: { caption, error, status } }) => {
      if (status !== undefined) showStatus(status);
      else if (error === undefined) resolve(caption);
      else reject(new Error(error));
    };
    worker.onerror = ({ message }) => reject(new Error(message || "worker.js could not be loaded"));
  });
  worker.postMessage(request);
  return answer.catch((error) => {
    worker.terminate(); // after a failed session the library cannot make another one
    worker = null;
    throw error;
  });
}

function element(tag, properties, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

/** Shows a photo. Rejects with an Error if it cannot be read or is too large. */
function showPhoto(image, file) {
  return new Promise((resolve, reject) => {
    image.onerror = () => reject(new Error("not an image that this browser can read"));
    image.onload = () => {
      const pixels = image.naturalWidth * image.naturalHeight;
      if (pixels <= MAX_PIXELS) return resolve();
      image.removeAttribute("src"); // before its pixels are decoded
      reject(new Error(`${Math.round(pixels / 1e6)} megapixels; at most ${MAX_PIXELS / 1e6} are read`));
    };
    image.src = URL.createObjectURL(file);
  });
}

/** Adds a card with the photo and the caption of each model. */
async function captionPhoto(file, settings) {
  const image = element("img", { alt: "" });
  const captions = element("dl");
  $("main").prepend(element("article", {}, image, element("h2", { textContent: file.name }), captions));
  const addRow = (name, text, className = "") =>
    captions.append(element("dt", {}, name), element("dd", { className }, text));
  try {
    await showPhoto(image, file);
    for (const model of await models) {
      const [name] = model.split("/");
      try {
        addRow(name, await requestCaption({ file, model, ...settings }));
      } catch (error) {
        addRow(name, error.message, "failed");
      }
    }
  } catch (error) {
    addRow("failed", error.message, "failed");
  }
}

function captionPhotos(files) {
  if (!$("form").reportValidity()) return;
  const { max_length, dtype } = Object.fromEntries(new FormData($("form")));
  for (const file of files) {
    queue = queue.then(() => {
      showStatus(`Captioning ${file.name}`);
      return captionPhoto(file, { max_length: Number(max_length), dtype });
    });
  }
  const last = (queue = queue.then(() => last === queue && showStatus("Ready")));
}

$("form").onsubmit = (event) => event.preventDefault();
$("#files").onchange = ({ target }) => {
  captionPhotos([...target.files]);
  target.value = ""; // so that the same photo can be chosen again
};
document.onpaste = ({ clipboardData }) => captionPhotos([...clipboardData.files]);
document.ondragover = (event) => event.preventDefault();
document.ondrop = (event) => {
  event.preventDefault();
  captionPhotos([...event.dataTransfer.files]);
};
models.then(
  () => showStatus("Ready"),
  () => showStatus("models.json is missing or damaged: build the folder again."),
);
