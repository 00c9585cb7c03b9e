/* Moves every control of a report and writes what the page then says, for check_report.py. */
window.addEventListener("load", () => {
  const milliseconds = performance.now();
  const said = () => [...document.querySelectorAll("#answers tbody tr")].map((row) =>
    [1, 2, 3].map((column) => Number(row.cells[column].dataset.value)));
  const values = () => data.controls.map((control) =>
    control.kind === "category" ? control.categories[control.value] : control.value);
  const places = [{ x: values(), said: said() }];
  data.controls.forEach((control) => {
    const element = document.getElementById("input" + control.first), isCategory = control.kind === "category";
    element.value = isCategory ? (control.start + 1) % control.categories.length
      : control.min + 0.3 * (control.max - control.min);
    element.dispatchEvent(new Event(isCategory ? "change" : "input"));
    places.push({ x: values(), said: said() });
  });
  document.querySelectorAll("#what-if input[type=checkbox]").forEach((box) => {
    box.click();
    const x = values();
    data.controls.filter((c) => c.flag).slice(0, 1).forEach((c) => { x[data.controls.indexOf(c)] = null; });
    places.push({ x, said: said() });
    box.click();
  });
  document.querySelectorAll(".choice select").forEach((select) => {
    select.value = select.options.length - 1;
    select.dispatchEvent(new Event("change"));
  });
  const table = document.querySelector("#about-scores table");
  table.tHead.rows[0].cells[1].click();
  const column = [...table.tBodies[0].rows].map((row) => row.cells[1].textContent);
  const charts = document.querySelectorAll("svg.chart").length;
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  make("pre", { id: "result" }, document.body,
    JSON.stringify({ places, column, charts, milliseconds, wide }));
});
