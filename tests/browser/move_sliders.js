/* Moves every slider of a report and writes what the page then says, for check_report.py. */
window.addEventListener("load", () => {
  const said = () => [...document.querySelectorAll("#answers tbody tr")].map((row) =>
    [1, 2].map((column) => Number(row.cells[column].dataset.value)));
  const places = [{ x: data.inputs.map((input) => input.mean), said: said() }];
  const sliders = [...document.querySelectorAll("#what-if input[type=range]")];
  const x = [...places[0].x];
  sliders.forEach((slider, d) => {
    slider.value = data.inputs[d].min + 0.3 * (data.inputs[d].max - data.inputs[d].min);
    x[d] = Number(slider.value);
    slider.dispatchEvent(new Event("input"));
    places.push({ x: [...x], said: said() });
  });
  document.querySelectorAll("select").forEach((select) => {
    select.value = select.options.length - 1;
    select.dispatchEvent(new Event("change"));
  });
  const table = document.querySelector("table");
  table.tHead.rows[0].cells[1].click();
  const column = [...table.tBodies[0].rows].map((row) => row.cells[1].textContent);
  const charts = document.querySelectorAll("svg.chart").length;
  const milliseconds = performance.now();
  make("pre", { id: "result" }, document.body, JSON.stringify({ places, column, charts, milliseconds }));
});
