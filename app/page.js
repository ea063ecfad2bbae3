// Behaviour of the results: shows a word's attention map, copies a caption.
(() => {
  const cardOf = (node) => node.closest(".smile-card");
  const wordAt = (event) => event.target instanceof Element && event.target.closest(".smile-word");

  /** Shows a word's attention map over the photo, and its probability in the line below. */
  function showWord(word) {
    const card = cardOf(word), map = card.querySelector(".smile-attention"), line = card.querySelector(".smile-seen");
    line.dataset.before ??= line.textContent;
    card.querySelectorAll(".smile-word.lit").forEach((other) => other.classList.remove("lit"));
    word.classList.add("lit");
    line.textContent = `${word.firstElementChild.textContent}: ${word.dataset.percent} %`;
    if (word.dataset.attention) {
      map.src = word.dataset.attention;
      map.hidden = false;
      card.classList.add("looking");
    }
  }

  /** Shows the focused word of a card again, or the whole photo. */
  function leaveWord(card) {
    const focused = card.querySelector(".smile-word:focus");
    if (focused) return showWord(focused);
    const line = card.querySelector(".smile-seen");
    card.querySelectorAll(".smile-word.lit").forEach((word) => word.classList.remove("lit"));
    card.classList.remove("looking");
    card.querySelector(".smile-attention").hidden = true;
    if (line.dataset.before) line.textContent = line.dataset.before;
  }

  for (const kind of ["mouseover", "focusin"])
    document.addEventListener(kind, (event) => wordAt(event) && showWord(wordAt(event)));
  for (const kind of ["mouseout", "focusout"])
    document.addEventListener(kind, (event) => wordAt(event) && setTimeout(leaveWord, 0, cardOf(wordAt(event))));

  // Gradio's examples are pictures in buttons without names for screen readers.
  document.addEventListener("focusin", (event) => {
    const examples = [...document.querySelectorAll(".gallery-item")];
    const index = examples.indexOf(event.target);
    if (index >= 0) event.target.ariaLabel = `Example ${index + 1}`;
  });

  document.addEventListener("keydown", (event) => {
    const word = wordAt(event);
    if (!word) return;
    const words = [...word.parentElement.querySelectorAll(".smile-word")];
    const index = words.indexOf(word);
    const indexOfKey = {
      ArrowRight: index + 1, ArrowDown: index + 1, ArrowLeft: index - 1, ArrowUp: index - 1, Home: 0, End: words.length - 1,
    };
    const next = words[indexOfKey[event.key]];
    if (next === undefined) return;
    event.preventDefault();
    word.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });

  async function copyText(text) {
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
      await copyText(button.dataset.copy);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    } else if (wordAt(event)) wordAt(event).focus();
  });
})();
