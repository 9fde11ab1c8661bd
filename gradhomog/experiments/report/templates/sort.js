"use strict";
// Replace headers by buttons that sort their column; without scripts, headers remain plain text.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  table.querySelectorAll("th").forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => {
      const up = header.getAttribute("aria-sort") !== "ascending";
      const key = (row) => row.cells[column].dataset.sort ?? row.cells[column].textContent;
      const rows = [...body.rows];
      const numeric = rows.every((row) => !Number.isNaN(Number(key(row))));
      rows.sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === "" || y === "") return (x === "") - (y === "");  // missing values stay last
        return (numeric ? x - y : x.localeCompare(y)) * (up ? 1 : -1);
      });
      body.append(...rows);
      for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
      header.setAttribute("aria-sort", up ? "ascending" : "descending");
    });
  });
}
