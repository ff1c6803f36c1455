// A field above each long table: rows that do not contain what is typed are hidden.
document.querySelectorAll("article table").forEach((table) => {
  const rows = [...table.querySelectorAll("tbody tr")];
  if (rows.length < 15) return;
  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = `Find in these ${rows.length} rows`;
  field.className = "md-input";
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
  table.before(field);
});
