// From an image file to the pixels that BLIP expects, as Pillow and BLIP's transform make them.

export const MOST_PIXELS = 50_000_000;
const BITS = 22; // of a weight's fraction; Pillow sums 8-bit pixels in 32-bit integers
const RADIUS = 2; // of the bicubic filter, in pixels of the smaller image

/** Width and height in the header of a PNG, JPEG, GIF, BMP or WebP file, or null. */
export function sizeInHeader(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const text = (at, n) => String.fromCharCode(...bytes.subarray(at, at + n));
  try {
    if (text(1, 3) === "PNG") return [view.getUint32(16), view.getUint32(20)];
    if (text(0, 3) === "GIF") return [view.getUint16(6, true), view.getUint16(8, true)];
    if (text(0, 2) === "BM") return [view.getInt32(18, true), Math.abs(view.getInt32(22, true))];
    if (text(8, 4) === "WEBP") {
      const long = (at) => (view.getUint32(at, true) & 0xffffff) + 1;
      const kind = text(12, 4);
      if (kind === "VP8X") return [long(24), long(27)];
      const bits = view.getUint32(kind === "VP8L" ? 21 : 26, true);
      if (kind === "VP8L") return [(bits & 0x3fff) + 1, ((bits >> 14) & 0x3fff) + 1];
      return [bits & 0x3fff, (bits >> 16) & 0x3fff];
    }
    if (view.getUint16(0) !== 0xffd8) return null;
    for (let at = 2; ; at += 2 + view.getUint16(at + 2)) {
      const marker = view.getUint8(at + 1);
      const isFrame = marker >= 0xc0 && marker <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(marker);
      if (isFrame) return [view.getUint16(at + 7), view.getUint16(at + 5)];
    }
  } catch {
    return null; // the header is cut off; decoding will say whether the file is an image
  }
}

/** An error whose message is a sentence for the page. */
export class UserError extends Error {}

function checkPixels(width, height) {
  if (width * height <= MOST_PIXELS) return;
  const millions = Math.round((width * height) / 1e6);
  throw new UserError(`The photo has ${millions} megapixels; at most ${MOST_PIXELS / 1e6} are read. Make it smaller.`);
}

/** Throws UserError if the header of a file says that there are too many pixels. */
export async function checkHeader(file) {
  const size = sizeInHeader(new Uint8Array(await file.slice(0, 1 << 20).arrayBuffer()));
  if (size) checkPixels(...size);
}

/** The RGBA pixels of an image file, as ImageData. Throws UserError if it has none or too many. */
export async function decode(file) {
  await checkHeader(file);
  let bitmap;
  try {
    bitmap = await createImageBitmap(file, { colorSpaceConversion: "none", premultiplyAlpha: "none" });
  } catch {
    throw new UserError(`${file.name || "The file"} is not an image that this browser can read.`);
  }
  const { width, height } = bitmap;
  checkPixels(width, height);
  const canvas = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  canvas.drawImage(bitmap, 0, 0);
  bitmap.close();
  return canvas.getImageData(0, 0, width, height);
}

/** Keys' cubic with a = -1/2, which Pillow calls BICUBIC. */
function cubic(x) {
  const t = Math.abs(x);
  if (t < 1) return (1.5 * t - 2.5) * t * t + 1;
  return t < 2 ? ((-0.5 * t + 2.5) * t - 4) * t + 2 : 0;
}

/** For each output pixel: the first input pixel, and the weights in fixed point. */
function filterWeights(from, to) {
  const scale = from / to;
  const stretch = Math.max(scale, 1); // antialiasing: a smaller image averages over more pixels
  return Array.from({ length: to }, (_, i) => {
    const center = (i + 0.5) * scale;
    const first = Math.max(0, Math.trunc(center - RADIUS * stretch + 0.5));
    const last = Math.min(from, Math.trunc(center + RADIUS * stretch + 0.5));
    const raw = Array.from({ length: last - first }, (_, j) =>
      cubic((first + j - center + 0.5) / stretch));
    const sum = raw.reduce((a, b) => a + b, 0);
    return { first, weight: raw.map((w) => Math.sign(w) * Math.trunc(Math.abs(w / sum) * 2 ** BITS + 0.5)) };
  });
}

/**
 * Resizes lines of `from` pixels to lines of `to` pixels, with three channels. Returns a new array.
 * sourceIndex, targetIndex: from a line and a pixel to the index of the pixel's red channel.
 */
function resizeLines(source, lines, from, to, sourceIndex, targetIndex) {
  const target = new Uint8ClampedArray(lines * to * 3);
  filterWeights(from, to).forEach(({ first, weight }, i) => {
    for (let line = 0; line < lines; line++) {
      let red = 0, green = 0, blue = 0;
      for (let j = 0; j < weight.length; j++) {
        const index = sourceIndex(line, first + j);
        red += source[index] * weight[j];
        green += source[index + 1] * weight[j];
        blue += source[index + 2] * weight[j];
      }
      const index = targetIndex(line, i);
      const half = 2 ** (BITS - 1);
      target[index] = Math.floor((red + half) / 2 ** BITS);
      target[index + 1] = Math.floor((green + half) / 2 ** BITS);
      target[index + 2] = Math.floor((blue + half) / 2 ** BITS);
    }
  });
  return target;
}

/** RGBA (height, width, 4) to RGB (side, side, 3): Pillow's resize((side, side), BICUBIC). */
export function resize(rgba, width, height, side) {
  const rows = resizeLines(rgba, height, width, side, (y, x) => (y * width + x) * 4, (y, x) => (y * side + x) * 3);
  return resizeLines(rows, side, height, side, (x, y) => (y * side + x) * 3, (x, y) => (y * side + x) * 3);
}

/** RGB (side, side, 3) to normalised float32 (1, 3, side, side). */
export function normalise(rgb, mean, std) {
  const count = rgb.length / 3;
  return Float32Array.from({ length: rgb.length }, (_, i) => {
    const channel = Math.floor(i / count);
    return (rgb[(i % count) * 3 + channel] / 255 - mean[channel]) / std[channel];
  });
}
