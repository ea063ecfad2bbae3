// Behaviour of the results: shows a word's attention map, copies a caption.
(() => {
  const card = (node) => node.closest(".smile-card");
  const wordAt = (event) => event.target instanceof Element && event.target.closest(".smile-word");

  function show(word) {
    const of = card(word), map = of.querySelector(".smile-attention"), seen = of.querySelector(".smile-seen");
    seen.dataset.before ??= seen.textContent;
    of.querySelectorAll(".smile-word.lit").forEach((other) => other.classList.remove("lit"));
    word.classList.add("lit");
    seen.textContent = `${word.firstElementChild.textContent}: ${word.dataset.percent} %`;
    if (word.dataset.attention) {
      map.src = word.dataset.attention;
      map.hidden = false;
      of.classList.add("looking");
    }
  }

  function clear(of) {
    const focused = of.querySelector(".smile-word:focus");
    if (focused) return show(focused);
    const seen = of.querySelector(".smile-seen");
    of.querySelectorAll(".smile-word.lit").forEach((word) => word.classList.remove("lit"));
    of.classList.remove("looking");
    of.querySelector(".smile-attention").hidden = true;
    if (seen.dataset.before) seen.textContent = seen.dataset.before;
  }

  for (const kind of ["mouseover", "focusin"])
    document.addEventListener(kind, (event) => wordAt(event) && show(wordAt(event)));
  for (const kind of ["mouseout", "focusout"])
    document.addEventListener(kind, (event) => wordAt(event) && setTimeout(clear, 0, card(wordAt(event))));

  // Gradio's examples are pictures in buttons without names for screen readers.
  document.addEventListener("focusin", (event) => {
    const examples = [...document.querySelectorAll(".gallery-item")];
    const at = examples.indexOf(event.target);
    if (at >= 0) event.target.ariaLabel = `Example ${at + 1}`;
  });

  document.addEventListener("keydown", (event) => {
    const word = wordAt(event);
    if (!word) return;
    const words = [...word.parentElement.querySelectorAll(".smile-word")];
    const at = words.indexOf(word);
    const next = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: words.length - 1 }[event.key];
    if (words[next] === undefined) return;
    event.preventDefault();
    word.tabIndex = -1;
    words[next].tabIndex = 0;
    words[next].focus();
  });

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Without https, browsers offer the clipboard only to localhost.
      const field = Object.assign(document.createElement("textarea"), { value: text });
      document.body.append(field);
      field.select();
      document.execCommand("copy");
      field.remove();
    }
  }

  document.addEventListener("click", async (event) => {
    const button = event.target instanceof Element && event.target.closest(".smile-copy");
    if (button) {
      await copy(button.dataset.copy);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    } else if (wordAt(event)) wordAt(event).focus();
  });
})();
