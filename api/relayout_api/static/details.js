// The details of a node: what happened to it and why, its attributes, operands, and alternatives with their costs.
import {bytes, cost, count, layoutText, make, typed} from "./text.js";

const KINDS = {
  kept: "unchanged", relaid: "other layout", removed: "removed", added: "added", conversion: "conversion", part: "part of a conversion",
};

export const kindText = kind => KINDS[kind];

// `go(key)` selects a node. Returns the elements.
export function detailsOf(node, result, go) {
  const {source, legal, report} = result;
  const parts = [
    make("h3", {}, node.io ? `${node.io === "input" ? "Input" : "Output"} ${node.title}` : node.title),
    make("p", {}, report && make("span", {class: `badge ${node.kind}`}, KINDS[node.kind]), node.name),
    make("p", {}, storyOf(node, result)),
  ];
  const place = node.after && legal ? {drawing: legal, entry: node.after} : {drawing: source, entry: node.before};
  if (node.io) {
    const value = place.drawing.values[place.entry.value];
    parts.push(facts([["Type", typed(value)], ["Layout", layoutsOf(node, result, entry => entry.value)], ["Size", bytes(value.bytes)], ["Data", value.data]]));
    return parts;
  }
  const own = place.entry.node;
  const attributes = Object.entries(own.attributes);
  parts.push(facts([
    ["Domain", own.domain || "ai.onnx"], ["Device", own.device],
    ["Inside", own.within === null ? null : `${place.drawing.nodes[own.within].operator} '${place.drawing.nodes[own.within].name}'`],
  ]));
  if (node.kind === "part" && node.main) {
    parts.push(make("p", {}, "The node ", make("button", {type: "button", class: "plain", onclick: () => go(node.main)}, node.main), " moves its data, and has its bytes and reasons."));
  }
  for (const index of node.kind === "part" ? [] : own.conversions) parts.push(...conversionOf(report.conversions[index], report.objective, go));
  const choice = node.before?.node.choice;
  if (choice) parts.push(...choiceOf(choice, report.objective));
  if (attributes.length) parts.push(make("h3", {}, "Attributes"), facts(attributes));
  parts.push(make("h3", {}, "Inputs"), valuesOf(place, own.inputs, result), make("h3", {}, "Results"), valuesOf(place, own.outputs, result));
  return parts;
}

const PROPERTIES = {
  producer_name: "Producer", producer_version: "Its version", domain: "Domain", model_version: "Model version", doc_string: "Description",
};

// The properties of a whole model, for the time in which no node is selected.
export function modelOf(drawing) {
  const opsets = Object.entries(drawing.opsets).map(([domain, version]) => `${domain || "ai.onnx"} ${version}`);
  const metadata = Object.entries(drawing.metadata);
  return [
    make("h3", {}, "Model"),
    facts([["Graph", drawing.name], ["Opsets", opsets.join(", ")], ["IR version", String(drawing.ir_version)],
      ...Object.entries(drawing.properties).map(([name, text]) => [PROPERTIES[name] ?? name, text])]),
    metadata.length > 0 && make("h3", {}, "Metadata"),
    facts(metadata),
    make("p", {class: "note"}, "Select a node to see its attributes, requirement and alternatives."),
  ].filter(Boolean);
}

function facts(pairs) {
  const shown = pairs.filter(([, text]) => text);
  return shown.length ? make("dl", {class: "facts"}, shown.map(([name, text]) => [make("dt", {}, name), make("dd", {}, text)])) : null;
}

// One or two sentences: what happened, and why.
function storyOf(node, {source, legal, report}) {
  if (!report) return "";
  if (node.io) {
    const [first, last] = [source.values[node.before?.value]?.layout, legal.values[node.after?.value]?.layout];
    if (node.kind === "relaid") return `Its layout changed from ${first ?? "unknown"} to ${last ?? "unknown"}.`;
    return "Its layout is as in the source.";
  }
  if (node.kind === "removed") {
    if (node.before.node.operator !== "Transpose") return "The legal graph does not have this node: it was replaced or joined with another.";
    return "This transpose is no longer needed: the nodes around it now use one layout.";
  }
  if (node.kind === "conversion") {
    return node.before ? "This conversion was in the source and stays." : "This conversion is new: it brings the value into the layout that the nodes below require.";
  }
  if (node.kind === "part") {
    const values = node.after.node.conversions.map(index => report.conversions[index].value);
    return `This node is part of the conversion of ${values.join(" and ")}.`;
  }
  if (node.kind === "added") return "The backend or the rewrite added this node.";
  const required = node.before?.node.choice?.alternatives.find(each => each.chosen)?.operands.some(each => each.required);
  if (node.kind === "relaid") {
    return required ? "The backend requires this layout." : "The node takes any layout; this one avoids conversions around it.";
  }
  return required ? "The node already had the layout that the backend requires." : "The backend requires no layout of this node.";
}

function layoutsOf(node, {source, legal}, of) {
  const [first, last] = [node.before && source.values[of(node.before)].layout, node.after && legal?.values[of(node.after)].layout];
  return first && last && first !== last ? `${first} → ${last}` : last ?? first ?? null;
}

function valuesOf({drawing}, values, {source, legal}) {
  // The same value in the other graph, by name.
  const other = drawing === legal ? source : legal;
  const named = new Map(other?.values.map(value => [value.name, value]));
  return make("ul", {class: "list"}, values.map(index => {
    if (index === null) return make("li", {class: "note"}, "omitted");
    const value = drawing.values[index];
    const twin = named.get(value.name);
    const [first, last] = drawing === legal ? [twin?.layout, value.layout] : [value.layout, twin?.layout];
    const layout = first && last && first !== last ? `${first} → ${last}` : last ?? first;
    return make("li", {}, make("b", {}, value.name), ` ${typed(value)}`, layout ? ` ${layout}` : "", value.data ? ` = ${value.data}` : value.constant ? " (constant)" : "",
      value.bytes !== null && make("span", {class: "note"}, ` ${bytes(value.bytes)}`));
  }));
}

function conversionOf(conversion, objective, go) {
  return [
    make("h3", {}, "Conversion"),
    facts([["Value", conversion.value], ["From", layoutText(conversion.from)], ["To", layoutText(conversion.to)], ["Moves", bytes(conversion.bytes)],
      ["Passes", conversion.passes > 1 ? String(conversion.passes) : null]]),
    make("p", {}, "Because:"),
    reasonsOf(conversion, objective, go),
  ];
}

// The consumers that require the layout; of an explained conversion, the requirements with what each would save.
export function reasonsOf(conversion, objective, go) {
  const to = name => make("button", {type: "button", class: "plain", onclick: () => go(name)}, name);
  const rows = conversion.required_by.map(each =>
    make("li", {}, to(each.node), ` requires ${layoutText(each.layout)}${/^(in|out)put /.test(each.node) ? "" : ` of input ${each.operand}`}`));
  const saved = conversion.reasons.map(each =>
    make("li", {}, `Without ${layoutText(each.layout)} at `, to(each.node), `${each.part === "boundary" ? "" : ` (${partText(each)}, required by the ${each.by})`}: ${cost(each.saved.cost, objective)} less${each.saved.exact ? "" : " or more"}`));
  return make("ul", {class: "list"}, rows, saved);
}

export const partText = ({part, operand}) =>
  (part === "operand" ? `input ${operand}` : part === "result" ? `result ${operand}` : part === "node" ? "all operands" : "");

function choiceOf({operands, alternatives, count: total}, objective) {
  const any = alternatives.some(each => each.operands.some(operand => operand.required));
  const table = make("table", {},
    make("thead", {}, make("tr", {}, operands.map(name => make("th", {scope: "col"}, name)), make("th", {scope: "col", class: "number"}, "Cost"))),
    make("tbody", {}, alternatives.map(each => make("tr", {},
      each.operands.map(operand => make("td", {}, layoutText(operand.layout), operand.required ? make("b", {title: "required by the backend"}, " *") : "")),
      make("td", {class: "number"}, each.chosen ? make("b", {}, "chosen") : changeOf(each.change, objective),
        each.device && ` at ${each.device}`)))));
  return [
    make("h3", {}, total > 1 ? `Alternatives (${count(total, "way")} to run it)` : "The only way to run it"),
    make("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "Alternatives"}, table),
    make("p", {class: "note"}, any ? "* required by the backend. " : "The backend requires no layout here. ",
      "The cost is the change of the total if only this node took the alternative.",
      total > alternatives.length && ` The ${alternatives.length} cheapest are shown.`),
  ];
}

const changeOf = (change, objective) =>
  (change === null ? "not possible alone" : change === 0 ? "the same" : `${change > 0 ? "+" : "−"}${cost(Math.abs(change), objective)}`);
