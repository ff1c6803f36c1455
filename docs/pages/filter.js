// Each long table stands in a box that scrolls, under a field: rows without what is typed are hidden.
document.querySelectorAll("article table").forEach((table) => {
  const rows = [...table.querySelectorAll("tbody tr")];
  if (rows.length < 15 && (rows[0]?.cells.length ?? 0) < 8) return;
  const box = document.createElement("div");
  box.className = "table-box";
  box.tabIndex = 0; // so that the keys scroll it
  table.before(box);
  box.append(table);
  if (rows.length < 15) return;
  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = `Find in these ${rows.length} rows`;
  field.setAttribute("aria-label", field.placeholder);
  field.className = "table-search";
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
  box.before(field);
});
