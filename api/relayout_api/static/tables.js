// Tables that sort and filter, each in a box that scrolls by itself.
import {make} from "./text.js";

const STEP = 200;

// `columns`: [{title, value: row => text or number, show: row => node or text, number, wide, wraps}]. Returns a section.
export function tableOf(title, note, columns, rows, id) {
  let sorted = rows.slice();
  let shown = STEP;
  let wanted = "";
  const body = make("tbody");
  const counter = make("span", {class: "note", "aria-live": "polite"});
  const more = make("button", {type: "button", onclick: () => { shown += STEP; fill(); }}, "Show more");
  const texts = new Map(rows.map(row => [row, columns.map(column => String(column.value(row) ?? "")).join("\n").toLowerCase()]));

  function fill() {
    const found = wanted ? sorted.filter(row => texts.get(row).includes(wanted)) : sorted;
    body.replaceChildren(...found.slice(0, shown).map(row => make("tr", {}, columns.map(column => {
      const cell = column.show ? column.show(row) : column.value(row);
      return make("td", {class: column.number ? "number" : column.wide ? "text" : column.wraps ? "words" : null}, cell === null || cell === undefined ? "" : cell instanceof Node ? cell : String(cell));
    }))));
    counter.textContent = found.length === rows.length ? `${rows.length} in all` : `${found.length} of ${rows.length}`;
    more.hidden = found.length <= shown;
  }

  function sortBy(index, head) {
    const down = head.getAttribute("aria-sort") === (columns[index].number ? "descending" : "ascending");
    const ascending = columns[index].number ? down : !down;
    for (const other of heads) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const {value} = columns[index];
    sorted = rows.slice().sort((a, b) => compare(value(a), value(b)) * (ascending ? 1 : -1));
    fill();
  }

  const heads = columns.map((column, index) => {
    const head = make("th", {scope: "col", class: column.number ? "number" : null, "aria-sort": "none"});
    head.append(make("button", {type: "button", onclick: () => sortBy(index, head)}, column.title));
    return head;
  });
  const filter = make("input", {
    type: "search", placeholder: "Filter", "aria-label": `Filter: ${title}`, autocomplete: "off",
    oninput: event => { wanted = event.target.value.trim().toLowerCase(); shown = STEP; fill(); },
  });
  fill();
  const table = make("table", {"aria-labelledby": id}, make("thead", {}, make("tr", {}, heads)), body);
  return make("div", {},
    make("div", {class: "table-head"}, make("h2", {id}, title), rows.length > 5 && filter, counter),
    note && make("p", {class: "note"}, note),
    make("div", {class: "scroll", tabindex: "0", role: "region", "aria-labelledby": id}, table), more);
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  return String(a).localeCompare(String(b), "en", {numeric: true});
}
