// Looks at a report as a reader does, and leaves what is wrong with it in the page.
addEventListener("load", () => {
  const problems = [];
  const plots = document.querySelectorAll("svg.plot");
  const within = (inner, outer) =>
    inner.left >= outer.left - 0.5 && inner.right <= outer.right + 0.5 && inner.top >= outer.top - 0.5 && inner.bottom <= outer.bottom + 0.5;
  const overlap = (a, b) =>
    Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
  for (const plot of plots) {
    const figure = plot.closest("figure");
    const name = figure?.querySelector("figcaption")?.textContent ?? "a plot without a title";
    const wrong = what => problems.push(`${name}: ${what}`);
    const frame = plot.getBoundingClientRect();
    const texts = [...plot.querySelectorAll("text")].map(text => ({ text, box: text.getBoundingClientRect() }));
    for (const { text, box } of texts) {
      if (!text.textContent.trim() && !text.classList.contains("unit")) wrong("an empty label");
      if (!within(box, frame)) wrong(`'${text.textContent}' reaches beyond the plot`);
      // The line of text itself; its box has room above and below.
      if (parseFloat(getComputedStyle(text).fontSize) * (frame.width / plot.viewBox.baseVal.width) < 7.5) wrong(`'${text.textContent}' is too small to read`);
    }
    // The box of a label is as high as its font; letters are not.
    const letters = ({ box }) => ({ left: box.left, right: box.right, top: box.top + box.height * 0.15, bottom: box.bottom - box.height * 0.15 });
    for (let a = 0; a < texts.length; a++)
      for (let b = a + 1; b < texts.length; b++)
        if (overlap(letters(texts[a]), letters(texts[b])))
          wrong(`'${texts[a].text.textContent}' and '${texts[b].text.textContent}' overlap`);
    const units = [...plot.querySelectorAll("text.unit")].map(text => text.textContent.trim());
    if (!units.length || units.some(unit => !unit)) wrong("an axis without a unit");
    const legend = [...(figure?.querySelectorAll(".legend li") ?? [])];
    if (!legend.length || legend.some(entry => !entry.textContent.trim() || !entry.querySelector("svg"))) wrong("no legend");
    if (/NaN|Infinity/.test(plot.innerHTML)) wrong("something is drawn nowhere");
  }
  for (const table of document.querySelectorAll("table")) {
    const cells = [...table.querySelectorAll("tbody td")];
    if (cells.some(cell => /NaN|Infinity/.test(cell.textContent))) problems.push("a table has what is no number");
  }
  const page = document.documentElement;
  if (page.scrollWidth > page.clientWidth + 1) problems.push(`the page is ${page.scrollWidth} wide in a window of ${page.clientWidth}`);
  const look = document.createElement("pre");
  look.id = "look";
  look.hidden = true;
  look.textContent = JSON.stringify({ plots: plots.length, problems });
  document.body.append(look);
});
