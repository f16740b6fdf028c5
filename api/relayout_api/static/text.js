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

export const count = (number, word, words = `${word}s`) => `${number.toLocaleString("en")} ${number === 1 ? word : words}`;

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

const FACTOR = /^(\d+)(?:%(\d+))?(?:\/(\d+))?$/;
// Letters: a longer text in words is hard to read.
const LONGEST_IN_WORDS = 80;

// A layout in words: axis numbers mean the axes of the source's value.
export function layoutText(layout) {
  const parts = (layout ?? "").split(",").map(part => FACTOR.exec(part));
  if (!parts.every(Boolean)) return layout;
  const isWhole = ([, , outer, inner]) => !outer && !inner;
  if (parts.every((part, i) => isWhole(part) && Number(part[1]) === i)) return `the source's order of ${count(parts.length, "axis", "axes")}`;
  const words = parts.map(([, axis, outer, inner]) => {
    const about = [inner && `blocks of ${inner}`, outer && `in blocks of ${outer}`].filter(Boolean).join(" ");
    return about ? `${axis} (${about})` : axis;
  }).join(", ");
  return words.length <= LONGEST_IN_WORDS ? `axes in the order ${words}` : layout;
}

export const typed = value => [value.dtype, shape(value.shape)].filter(Boolean).join(" ");

export function say(text) {
  at("status").textContent = text;
}
