// Elements and texts.

export const at = id => document.getElementById(id);

// An element with properties (`class`, `on*` listeners, attributes) and children (nodes or text; null is left out).
export function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "value" || key === "checked" || key === "hidden" || key === "disabled") element[key] = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false));
  return element;
}

export const count = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;

// Decimal units with two digits, as in the tables of the command.
export function bytes(number) {
  if (number === null || number === undefined) return "";
  const size = Math.abs(number);
  if (size < 1000) return count(number, "byte");
  const units = ["kB", "MB", "GB", "TB", "PB"];
  let unit = -1;
  let value = number;
  while (Math.abs(value) >= 1000 && unit + 1 < units.length) {
    value /= 1000;
    unit += 1;
  }
  const digits = Math.abs(value) < 10 ? 2 : 1;
  return `${value.toLocaleString("en", {minimumFractionDigits: digits, maximumFractionDigits: digits})} ${units[unit]}`;
}

// A cost in the objective's unit.
export const cost = (number, objective) => (objective === "transposes" ? count(number, "transpose") : bytes(number));

export const shape = dims => (dims ? dims.map(dim => dim ?? "?").join("×") || "scalar" : "unknown shape");

// A layout in words: axis numbers mean the axes of the source's value.
export function layoutText(layout) {
  if (!/^\d+(,\d+)*$/.test(layout)) return layout;
  const axes = layout.split(",").map(Number);
  return axes.every((axis, i) => axis === i) ? "the source's order of axes" : `axes in the order ${axes.join(", ")}`;
}

export const typed = value => [value.dtype, shape(value.shape)].filter(Boolean).join(" ");

export function say(text) {
  at("status").textContent = text;
}
