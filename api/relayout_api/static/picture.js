// From drawings (see /v1/graph) to one picture: nodes with a kind, and links between them.
//
// Kinds: `kept`, `relaid` (kept, with another layout), `removed`, `added`, `conversion` (it changes a layout in the legal
// graph), and `part` (another node of a conversion, such as a Reshape before its Transpose). The union of both graphs has the nodes of both; `source` of a legal node tells which of
// them are the same.
import {bytes, shape} from "./text.js";

export const CHANGES = new Set(["relaid", "removed", "added", "conversion", "part"]);

// One drawing with its keys: `keys[i]` of node i, and the links between visible nodes.
class Side {
  // `before`: the side of the source. A node that has a counterpart there has its key.
  constructor(drawing, constants, before = null) {
    this.drawing = drawing;
    this.nodes = new Map();
    this.links = [];
    const producers = new Map();
    const consumers = drawing.values.map(() => []);
    const unique = (key, entry, others = null, shared = false) => {
      let own = key;
      for (let i = 2; this.nodes.has(own) || (!shared && others?.nodes.has(own)); i++) own = `${key} #${i}`;
      this.nodes.set(own, entry);
      return own;
    };
    const visible = value => constants || !drawing.values[value].constant;
    for (const value of drawing.inputs) {
      if (visible(value)) producers.set(value, unique(`input ${drawing.values[value].name}`, {io: "input", value}));
    }
    const keyOf = node => before?.keys[node.source ?? -1] ?? `${node.operator} '${node.name}'`;
    const hidden = node => !constants && node.constant;
    // Counterparts first, so that no other node takes their keys.
    this.keys = drawing.nodes.map(() => null);
    for (const counterpart of [true, false]) {
      drawing.nodes.forEach((node, index) => {
        const own = before !== null && node.source !== null && before.keys[node.source] !== null;
        if (own === counterpart && !hidden(node)) this.keys[index] = unique(keyOf(node), {node, index}, before, own);
      });
    }
    drawing.nodes.forEach((node, index) => {
      const key = this.keys[index];
      if (!key) return;
      for (const value of node.outputs) producers.set(value, key);
      const read = new Set(node.inputs.filter(value => value !== null));
      for (const body of node.bodies) body.outputs.forEach(value => read.add(value));
      for (const value of read) consumers[value].push(key);
    });
    for (const value of drawing.outputs) {
      consumers[value].push(unique(`output ${drawing.values[value].name}`, {io: "output", value}));
    }
    // An input of the body of a Loop or Scan has its first value, or its slices, from the input at the same place.
    const outer = new Map();
    for (const node of drawing.nodes) {
      for (const body of node.bodies) {
        if (body.inputs.length === node.inputs.length) body.inputs.forEach((value, i) => outer.set(value, node.inputs[i]));
      }
    }
    for (const value of outer.keys()) {
      let origin = value;
      while (outer.has(origin)) origin = outer.get(origin);
      if (producers.has(origin)) producers.set(value, producers.get(origin));
    }
    this.mains = mainsOf(drawing);
    for (const [value, key] of producers) {
      if (consumers[value].length) this.links.push({from: key, to: consumers[value], value: drawing.values[value]});
    }
  }
}

// The node that stands for each conversion: the first that moves data, or else the first.
function mainsOf({nodes}) {
  const mains = new Map();
  const moves = ({operator, domain}) => operator === "Transpose" || domain !== "";
  for (const wanted of [moves, () => true]) {
    nodes.forEach((node, index) => {
      for (const each of wanted(node) ? node.conversions : []) if (!mains.has(each)) mains.set(each, index);
    });
  }
  return mains;
}

// `mode`: "changes" (the union), "before" or "after". Without a legal drawing, the source alone.
export function pictureOf({source, legal, report}, mode, constants) {
  const before = new Side(source, constants);
  const after = legal ? new Side(legal, constants, before) : null;
  const nodes = [];
  const number = new Map();
  const sides = mode === "after" && after ? [after] : mode === "changes" && after ? [before, after] : [before];
  const placeIn = (side, key) => (side?.nodes.has(key) ? {side, entry: side.nodes.get(key)} : null);
  for (const side of sides) {
    for (const [key, entry] of side.nodes) {
      if (number.has(key)) continue;
      number.set(key, nodes.length);
      nodes.push({key, ...describe(entry, placeIn(before, key), placeIn(after, key), report, mode)});
    }
  }
  const links = sides.length === 2 ? joined(before, after, number) : single(sides[0], number);
  const layouts = new Map();
  for (const link of links) if (link.layout) layouts.set(link.layout, (layouts.get(link.layout) ?? 0) + 1);
  return {nodes, links, number, mode, layouts: [...layouts.keys()].sort((a, b) => layouts.get(b) - layouts.get(a))};
}

function linkOf(from, to, value, kind, number) {
  return {from: number.get(from), to: to.map(key => number.get(key)), kind, value,
    layout: value.layout, label: [value.layout, shape(value.shape)].filter(Boolean).join("  ")};
}

function single(side, number) {
  return side.links.map(({from, to, value}) => linkOf(from, to, value, "kept", number));
}

function joined(before, after, number) {
  const pairs = side => {
    const found = new Map();
    for (const link of side.links) for (const target of link.to) found.set(`${link.from}\n${target}`, link);
    return found;
  };
  const [old, now] = [pairs(before), pairs(after)];
  const links = [];
  for (const [side, other, kind] of [[before, now, "removed"], [after, old, "added"]]) {
    for (const {from, to, value} of side.links) {
      const own = to.filter(target => !other.has(`${from}\n${target}`));
      if (own.length) links.push(linkOf(from, own, value, kind, number));
      const shared = to.filter(target => other.has(`${from}\n${target}`));
      // Both graphs have it: once, with the legal graph's layout.
      if (kind === "added" && shared.length) links.push(linkOf(from, shared, value, "kept", number));
    }
  }
  return links;
}

// The title, the second line and the kind of a node; `source` and `legal` are its places in the two graphs, or null.
function describe(entry, source, legal, report, mode) {
  return entry.io ? boundary(entry, source, legal, mode) : operator(entry, source, legal, report, mode);
}

function boundary(entry, source, legal, mode) {
  const [first, last] = [source, legal].map(place => place && place.side.drawing.values[place.entry.value]);
  const value = first ?? last;
  const moved = first?.layout && last?.layout && first.layout !== last.layout;
  const shown = mode === "after" && last ? last : value;
  return {
    title: value.name, io: entry.io, kind: moved ? "relaid" : "kept", name: value.name,
    line: moved && mode === "changes" ? `${first.layout} → ${last.layout}`
      : [shown.layout, shape(shown.shape)].filter(Boolean).join(" "),
    before: source?.entry ?? null, after: legal?.entry ?? null,
  };
}

function operator(entry, source, legal, report, mode) {
  const own = {
    title: entry.node.operator, name: entry.node.name, io: null, before: source?.entry ?? null, after: legal?.entry ?? null,
  };
  if (!report) return {...own, kind: "kept", ...lineOf(source)};
  if (!legal) return {...own, kind: "removed", ...lineOf(source)};
  const {side, entry: {node, index}} = legal;
  if (node.conversions.length) {
    const mains = node.conversions.filter(each => side.mains.get(each) === index);
    const {line, says} = lineOf(legal);
    if (!mains.length) return {...own, kind: "part", line, says, main: side.keys[side.mains.get(node.conversions[0])]};
    return {...own, kind: "conversion", line: `${line} · ${bytes(report.conversions[mains[0]].bytes)}`, says};
  }
  if (!source) return {...own, kind: "added", ...lineOf(legal)};
  // Where the names of axes are unknown in the legal graph, the plan knows the layout.
  const [first, last] = [layoutOf(source), layoutOf(legal) ?? chosenOf(source.entry.node)];
  if (first && last && first !== last) {
    return {...own, kind: "relaid", says: "layout", line: mode === "before" ? first : mode === "after" ? last : `${first} → ${last}`};
  }
  return {...own, kind: "kept", ...(last && !movement(legal) ? {line: last, says: "layout"} : lineOf(legal))};
}

// The second line of a node, and whether it is a `layout`, a `permutation` or a `shape`.
function lineOf(place) {
  const moved = movement(place);
  if (moved) return {line: moved, says: moved.includes("→") ? "layout" : "permutation"};
  const layout = layoutOf(place);
  return layout ? {line: layout, says: "layout"} : {line: shapeOf(place), says: "shape"};
}

const resultOf = ({side, entry: {node}}) => (node.outputs.length ? side.drawing.values[node.outputs[0]] : null);

const layoutOf = place => resultOf(place)?.layout ?? null;

const shapeOf = place => (resultOf(place) ? shape(resultOf(place).shape) : "");

function chosenOf(node) {
  const chosen = node.choice?.alternatives.find(alternative => alternative.chosen);
  const result = node.choice?.operands.indexOf("result 0") ?? -1;
  const layout = chosen && result >= 0 ? chosen.operands[result].layout : "";
  // By letters, not by the numbers of axes.
  return /^[A-Z]/.test(layout) ? layout : null;
}

// Of a Transpose: from which layout to which, or else its permutation.
function movement(place) {
  const {node} = place.entry;
  if (node.operator !== "Transpose" || typeof node.inputs[0] !== "number") return null;
  const [from, to] = [place.side.drawing.values[node.inputs[0]].layout, layoutOf(place)];
  return from && to ? `${from} → ${to}` : node.attributes.perm ?? "reversed";
}

// The nodes that a text occurs in: their operator, name, values, layouts.
export function search(picture, drawings, text) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return [];
  const found = [];
  picture.nodes.forEach((node, index) => {
    const words = [node.title, node.key, node.line];
    for (const [drawing, entry] of [[drawings.source, node.before], [drawings.legal, node.after]]) {
      if (!entry || !drawing) continue;
      const values = entry.io ? [entry.value] : [...entry.node.outputs, ...entry.node.inputs.filter(value => value !== null)];
      for (const value of values) words.push(drawing.values[value].name, drawing.values[value].layout ?? "");
    }
    if (words.some(word => word.toLowerCase().includes(wanted))) found.push(index);
  });
  return found;
}
