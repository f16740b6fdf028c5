// Forms made from JSON schemas: of the options (OpenAPI document) and of a backend's options (/v1/backends).
import {make} from "./text.js";

// A form of fields; `values()` has those that differ from the default, and throws Error for one that does not parse.
// `fill(values)` is the reverse: a field without a value gets its default.
export function formOf(fields, prefix) {
  const inputs = fields.map(field => inputOf(field, `${prefix}-${field.name}`));
  return {
    elements: inputs.map(input => input.element),
    values() {
      const given = {};
      for (const [i, {read}] of inputs.entries()) {
        const value = read();
        if (value !== undefined) given[fields[i].name] = value;
      }
      return given;
    },
    fill(values) {
      for (const [i, {write}] of inputs.entries()) write(values[fields[i].name] ?? fields[i].default);
    },
  };
}

// The properties of an object schema as fields. Pydantic writes an optional value as anyOf with null.
export function fieldsOf(schema, left = []) {
  return Object.entries(schema?.properties ?? {}).filter(([name]) => !left.includes(name)).map(([name, property]) => {
    const variants = property.anyOf ?? [property];
    const own = variants.find(variant => variant.type !== "null") ?? {};
    return {name, schema: {...property, ...own}, default: property.default ?? null, about: property.description ?? ""};
  });
}

const typesOf = schema => [schema.type ?? []].flat();

function inputOf(field, id) {
  const {schema} = field;
  const types = typesOf(schema);
  const about = make("p", {class: "note", id: `${id}-about`}, field.about.replaceAll("`", ""));
  const described = field.about ? {"aria-describedby": `${id}-about`} : {};
  if (schema.enum) {
    const select = make("select", {id, ...described}, schema.enum.map(value => make("option", {}, String(value))));
    select.value = field.default;
    return wrap(field, id, select, about, () => (select.value === String(field.default) ? undefined : select.value),
      value => { select.value = value; });
  }
  if (types.length === 1 && types[0] === "boolean") {
    const box = make("input", {type: "checkbox", id, ...described, checked: field.default === true});
    const element = make("div", {class: "field"}, make("label", {class: "check", for: id}, box, title(field.name)), about);
    return {element, read: () => (box.checked === (field.default === true) ? undefined : box.checked),
      write: value => { box.checked = value === true; }};
  }
  if (types.length === 1 && types[0] === "object" && isMapping(schema)) {
    const area = make("textarea", {id, rows: 2, ...described, spellcheck: "false", placeholder: "name = value, one a line"});
    return wrap(field, id, area, about, () => pairs(area.value, schema, field.name),
      value => { area.value = Object.entries(value ?? {}).map(([name, own]) => `${name} = ${textOf(own)}`).join("\n"); });
  }
  const numeric = types.filter(type => type !== "null").every(type => type === "number" || type === "integer") && types.length;
  const input = make("input", {
    id, ...described, type: numeric ? "number" : "text", autocomplete: "off",
    min: numeric ? schema.minimum ?? schema.exclusiveMinimum : undefined,
    max: numeric ? schema.maximum : undefined,
    step: numeric ? (types.includes("integer") ? 1 : "any") : undefined,
    placeholder: field.default === null ? "none" : textOf(field.default),
  });
  return wrap(field, id, input, about, () => valueOf(input.value, types, field),
    value => { input.value = textOf(value) === textOf(field.default) ? "" : textOf(value); });
}

const isMapping = schema => typeof schema.additionalProperties === "object";

const textOf = value => (typeof value === "string" ? value : JSON.stringify(value));

function wrap(field, id, input, about, read, write) {
  return {element: make("div", {class: "field"}, make("label", {for: id}, title(field.name)), input, about), read, write};
}

const title = name => (name[0].toUpperCase() + name.slice(1)).replaceAll("_", " ");

function valueOf(text, types, field) {
  if (text.trim() === "") return undefined;
  if (types.length === 1 && types[0] === "string") return text;
  try {
    return JSON.parse(text);
  } catch {
    if (types.includes("string") || !types.length) return text;
    throw new Error(`${title(field.name)}: expected ${types.join(" or ")} in JSON, found ${text}`);
  }
}

// Lines of NAME = VALUE.
function pairs(text, schema, name) {
  const found = {};
  const inner = typesOf(schema.additionalProperties);
  for (const line of text.split("\n").map(each => each.trim()).filter(Boolean)) {
    const mark = inner.includes("integer") ? line.lastIndexOf("=") : line.indexOf("=");
    const [key, value] = [line.slice(0, mark).trim(), line.slice(mark + 1).trim()];
    if (mark < 1 || !key || !value) throw new Error(`${title(name)}: expected name = value, found ${line}`);
    found[key] = valueOf(value, inner, {name: `${name} ${key}`});
  }
  return Object.keys(found).length ? found : undefined;
}
