// Looks at the page of a served store as a reader does, and leaves what is wrong with it in the page.
setTimeout(() => {
  const problems = [];
  const page = document.documentElement;
  if (page.scrollWidth > page.clientWidth + 1) problems.push(`the page is ${page.scrollWidth} wide in a window of ${page.clientWidth}`);
  const cards = [...document.querySelectorAll("main section")];
  const boxes = cards.map(card => card.getBoundingClientRect());
  for (const card of cards) {
    const name = card.querySelector("h2")?.textContent ?? "a card without a title";
    const frame = card.getBoundingClientRect();
    for (const part of card.querySelectorAll("dt, dd, td, th, p, h2")) {
      const box = part.getBoundingClientRect();
      if (box.left < frame.left - 1 || box.right > frame.right + 1) problems.push(`${name}: '${part.textContent.slice(0, 40)}' reaches beyond its card`);
      if (part.scrollWidth > part.clientWidth + 1) problems.push(`${name}: '${part.textContent.slice(0, 40)}' is cut off`);
      const lines = part.getBoundingClientRect().height / parseFloat(getComputedStyle(part).lineHeight);
      // In a row, all cells are as high as the name.
      if (lines > 2.5 && part.matches("dd, th, td") && !part.closest(".names")) problems.push(`${name}: '${part.textContent.slice(0, 40)}' is broken into lines`);
      if (/NaN|Infinity|undefined|null|\[object/.test(part.textContent)) problems.push(`${name}: '${part.textContent.slice(0, 40)}' is no figure`);
      if (part.textContent && parseFloat(getComputedStyle(part).fontSize) < 12) problems.push(`${name}: '${part.textContent.slice(0, 40)}' is too small to read`);
      if ([...part.childNodes].some(node => node.nodeType === 1 && !node.classList.contains("key"))) problems.push(`${name}: a text became an element`);
    }
  }
  for (let a = 0; a < boxes.length; a++)
    for (let b = a + 1; b < boxes.length; b++)
      if (Math.min(boxes[a].right, boxes[b].right) - Math.max(boxes[a].left, boxes[b].left) > 1 && Math.min(boxes[a].bottom, boxes[b].bottom) - Math.max(boxes[a].top, boxes[b].top) > 1)
        problems.push("two cards overlap");
  const look = document.createElement("pre");
  look.id = "look";
  look.hidden = true;
  look.textContent = JSON.stringify({ plots: cards.length, problems });
  document.body.append(look);
}, 300);
