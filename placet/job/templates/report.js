// Read-outs: the values of a chart at the step under the pointer.
for (const plot of document.querySelectorAll(".plot")) {
  const lines = JSON.parse(plot.dataset.readout);
  const output = plot.parentElement.querySelector(".readout");
  const pointer = plot.querySelector(".pointer");
  const nearest = (points, x) => points.reduce((best, point) =>
    Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best);
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    const x = 1000 * (event.clientX - box.left) / box.width;
    const at = nearest(lines[0][1], x);
    const parts = lines.map(([label, points]) => {
      const point = nearest(points, x);
      const step = point[1] === at[1] ? "" : ` (step ${point[1]})`;
      return `${lines.length > 1 ? label + " " : ""}${point[2]}${step}`;
    });
    output.textContent = `step ${at[1]}: ${parts.join(", ")}`;
    pointer.style.left = `${at[0] / 10}%`;
    plot.parentElement.classList.add("pointed");
  });
  plot.addEventListener("pointerleave", () =>
    plot.parentElement.classList.remove("pointed"));
}
