"use strict";
// Draws the charts of the report. They lie in one compressed text: specifications, and frames by name (figures.py).
(async () => {
  const MANY_MARKS = 2000;
  const ERRORS_ONLY = 1;

  async function unpacked(element) {
    const bytes = Uint8Array.from(atob(element.textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).json();
  }

  function namesIn(node, found = new Set()) {
    if (node !== null && typeof node === "object") {
      if (typeof node.data?.name === "string") found.add(node.data.name);
      Object.values(node).forEach((child) => namesIn(child, found));
    }
    return found;
  }

  async function draw(figure, which) {
    const spec = specs[Number(figure.dataset.charts.split(" ")[which])];
    // Vega marks the rows it is given, so each chart gets its own.
    const datasets = Object.fromEntries([...namesIn(spec)].map((name) => [name, structuredClone(frames[name])]));
    const marks = Math.max(0, ...Object.values(datasets).map((rows) => rows.length));
    const drawing = figure.querySelector(".drawing");
    const words = [...figure.querySelectorAll(".words")];
    words.forEach((text, place) => { text.hidden = place !== which; });
    drawing.setAttribute("aria-label", words[which].textContent);
    try {
      await vegaEmbed(drawing, { ...spec, datasets }, {
        renderer: marks > MANY_MARKS ? "canvas" : "svg",
        actions: { export: true, source: false, compiled: false, editor: false },
        downloadFileName: "chart",
        logLevel: ERRORS_ONLY,
      });
      figure.dataset.state = "drawn";
    } catch (error) {
      figure.dataset.state = "failed";
      drawing.textContent = `This chart cannot be drawn: ${error.message}`;
    }
  }

  const { specs, frames } = await unpacked(document.getElementById("charts"));
  for (const figure of document.querySelectorAll("figure.chart")) {
    const choice = figure.querySelector("select");
    choice?.addEventListener("change", () => draw(figure, Number(choice.value)));
    draw(figure, Number(figure.dataset.first));
  }
})();
