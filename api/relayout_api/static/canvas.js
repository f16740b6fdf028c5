// One graph on a canvas: layout in a worker, drawing, panning, zooming, selection, keyboard.
import {CHANGES} from "./picture.js";
import {make, count} from "./text.js";

const LARGEST_ZOOM = 3;
const TEXT_ZOOM = 0.32;
const LABEL_ZOOM = 0.75;
const OVERVIEW = 18;
const MARGIN = 40;
const PAD = 24;
const WIDEST = 300;
const COLORS = ["kept", "relaid", "removed", "added", "conversion", "part"];
// Edges by layout, the most frequent first; each has a contrast of 3 or more on the graph's background.
const PALETTES = {
  light: ["#3567c0", "#b3541e", "#0f766e", "#8e3fa8", "#6b6b12", "#b0225f"],
  dark: ["#7fa8f5", "#f0a36b", "#5cc8bb", "#d39be8", "#c9c964", "#f48bb5"],
};

let worker = null;
let asked = 0;
const waiting = new Map();

function layOut(nodes, links) {
  if (!worker) {
    worker = new Worker(new URL("./layout_worker.js", import.meta.url), {type: "module"});
    worker.onmessage = ({data: {id, placed}}) => {
      waiting.get(id)(placed);
      waiting.delete(id);
    };
  }
  asked += 1;
  const id = asked;
  worker.postMessage({id, nodes, links});
  return new Promise(resolve => waiting.set(id, resolve));
}

export class GraphView {
  // `onselect(view, index)` is called with the index of a node, or null.
  constructor(name, onselect) {
    this.canvas = make("canvas", {
      tabindex: "0", role: "application", "aria-roledescription": "graph", "aria-describedby": "graph-help",
    });
    this.wait = make("p", {class: "wait"}, "Laying out…");
    this.element = make("div", {class: "view", "aria-busy": "true"}, this.canvas, make("p", {class: "name"}, name), this.wait);
    this.name = name;
    this.onselect = onselect;
    this.picture = null;
    this.placed = null;
    this.selected = null;
    this.matches = new Set();
    this.scale = 1;
    this.left = 0;
    this.top = 0;
    this.ratio = 1;
    this.pending = false;
    this.context = this.canvas.getContext("2d", {alpha: false});
    this.theme = matchMedia("(prefers-color-scheme: dark)");
    this.onTheme = () => { this.colors = null; this.redraw(); };
    this.theme.addEventListener("change", this.onTheme);
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.element);
    this.listen();
  }

  close() {
    this.observer.disconnect();
    this.theme.removeEventListener("change", this.onTheme);
    this.element.remove();
  }

  // Resolves when the graph is drawn. `focus` is the key of the node to show.
  async show(picture, focus) {
    performance.mark("graph-start");
    this.picture = picture;
    this.placed = null;
    this.wait.hidden = false;
    this.element.setAttribute("aria-busy", "true");
    this.measure(picture);
    const {nodes, links} = picture;
    const placed = await layOut(
      nodes.map(({width, height}) => ({width, height})), links.map(({from, to}) => ({from, to})));
    if (this.picture !== picture) return;
    this.placed = placed;
    performance.measure("graph-layout", "graph-start");
    this.incoming = nodes.map(() => []);
    this.outgoing = nodes.map(() => []);
    links.forEach(({from, to}, link) => {
      for (const target of to) {
        this.outgoing[from].push(target);
        this.incoming[target].push(from);
      }
      const spans = this.placed.routes[link].map(route => [route[1], route[route.length - 1], ...sides(route)]);
      Object.assign(links[link], {spans, lowest: spans.reduce((most, span, t) => (span[1] > spans[most][1] ? t : most), 0)});
    });
    this.changed = nodes.map((_, i) => i).filter(i => CHANGES.has(nodes[i].kind))
      .sort((a, b) => placed.y[a] - placed.y[b] || placed.x[a] - placed.x[b]);
    // Other layouts and parts are many and follow from the conversions, so the steps from change to change leave them out.
    const steps = this.changed.filter(i => !["relaid", "part"].includes(nodes[i].kind));
    this.changes = steps.length ? steps : this.changed;
    this.wait.hidden = true;
    this.canvas.setAttribute("aria-label",
      `${this.name}: ${count(nodes.length, "node")}, ${count(this.changed.length, "change")}`);
    this.start(focus);
    this.draw();
    this.element.setAttribute("aria-busy", "false");
    performance.measure("graph-drawn", "graph-start");
  }

  // The size of each node, and its texts as they fit: those that are too long lack their middle.
  measure({nodes}) {
    const context = this.context;
    for (const node of nodes) {
      context.font = "600 13px system-ui, sans-serif";
      node.shownTitle = shortened(context, node.title, WIDEST - PAD);
      const title = context.measureText(node.shownTitle).width;
      context.font = "12px system-ui, sans-serif";
      node.shownLine = shortened(context, node.line, WIDEST - PAD);
      const line = context.measureText(node.shownLine).width;
      node.width = Math.max(title, line, 60) + PAD;
      node.height = node.line ? 40 : 28;
    }
  }

  // The first view: the node to show, or else the whole graph where it is readable, or else its first change.
  start(focus) {
    this.selected = focus === undefined ? null : this.picture.number.get(focus) ?? null;
    this.resize();
    const {width, height} = this.size();
    const all = Math.min(width / (this.placed.width + 2 * MARGIN), height / (this.placed.height + 2 * MARGIN));
    if (this.selected !== null) {
      this.scale = Math.max(this.scale, 0.8);
      this.center(this.selected);
    } else if (all > 0.55) {
      this.fit();
    } else {
      this.scale = 0.8;
      this.center(this.changes[0] ?? 0);
    }
  }

  size() {
    return {width: this.canvas.clientWidth - OVERVIEW, height: this.canvas.clientHeight};
  }

  resize() {
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    const [width, height] = [Math.round(this.canvas.clientWidth * ratio), Math.round(this.canvas.clientHeight * ratio)];
    if (this.canvas.width !== width || this.canvas.height !== height) {
      // The middle of the view stays in the middle.
      this.left += (this.canvas.width / this.ratio - width / ratio) / this.scale / 2;
      this.top += (this.canvas.height / this.ratio - height / ratio) / this.scale / 2;
      this.canvas.width = width;
      this.canvas.height = height;
    }
    this.ratio = ratio;
    this.redraw();
  }

  fit() {
    if (!this.placed) return;
    const {width, height} = this.size();
    const {width: across, height: down} = this.placed;
    this.scale = Math.min(width / (across + 2 * MARGIN), height / (down + 2 * MARGIN), 1.2);
    this.left = across / 2 - width / this.scale / 2;
    this.top = down / 2 - height / this.scale / 2;
    this.redraw();
  }

  // Around a node, but not beyond the graph where it is higher than the view.
  center(node) {
    const {width, height} = this.size();
    this.left = this.placed.x[node] - width / this.scale / 2;
    const lowest = this.placed.height + MARGIN - height / this.scale;
    this.top = Math.max(Math.min(this.placed.y[node] - height / this.scale / 2, lowest), Math.min(-MARGIN, lowest));
    this.redraw();
  }

  // Zoom around a point of the canvas.
  zoom(factor, x = this.size().width / 2, y = this.size().height / 2) {
    if (!this.placed) return;
    const least = Math.min(0.02, this.size().height / (this.placed.height + 2 * MARGIN));
    const scale = Math.min(Math.max(this.scale * factor, least), LARGEST_ZOOM);
    this.left += x / this.scale - x / scale;
    this.top += y / this.scale - y / scale;
    this.scale = scale;
    this.redraw();
  }

  pan(dx, dy) {
    this.left -= dx / this.scale;
    this.top -= dy / this.scale;
    this.redraw();
  }

  // Select a node by index; `shows`: move it into the view.
  select(node, shows) {
    this.selected = node;
    if (node !== null && shows && this.placed) {
      if (this.scale < 0.5) this.scale = 0.9;
      this.center(node);
    }
    this.redraw();
  }

  selectKey(key, shows) {
    this.select(this.picture?.number.get(key) ?? null, shows);
  }

  nextChange(step) {
    if (!this.placed || !this.changes.length) return null;
    const {y} = this.placed;
    const here = this.selected === null ? -Infinity : y[this.selected];
    let index = this.changes.indexOf(this.selected);
    if (index >= 0) index += step;
    else if (step > 0) index = this.changes.findIndex(change => y[change] > here);
    else index = this.changes.findLastIndex(change => y[change] < here);
    index = (index + this.changes.length) % this.changes.length;
    return this.changes[index];
  }

  // The node next to the selected one: along a link, or in its layer.
  neighbour(key) {
    if (!this.placed) return null;
    const {x, y, layers} = this.placed;
    if (this.selected === null) return this.nearest(this.left + this.size().width / this.scale / 2, this.top + this.size().height / this.scale / 2);
    const here = this.selected;
    const closest = nodes => nodes.reduce((best, node) =>
      (best === null || Math.abs(x[node] - x[here]) < Math.abs(x[best] - x[here]) ? node : best), null);
    if (key === "ArrowDown") return closest(this.outgoing[here]);
    if (key === "ArrowUp") return closest(this.incoming[here]);
    const right = key === "ArrowRight";
    const beside = this.picture.nodes.map((_, node) => node).filter(node =>
      layers[node] === layers[here] && (right ? x[node] > x[here] : x[node] < x[here]));
    return closest(beside) ?? closest(this.siblings(here, right, y));
  }

  // Without a node in the same layer: the other results of the producer and the other operands of the consumer.
  siblings(here, right) {
    const {x} = this.placed;
    const others = [...this.incoming[here].flatMap(node => this.outgoing[node]), ...this.outgoing[here].flatMap(node => this.incoming[node])];
    return others.filter(node => (right ? x[node] > x[here] : x[node] < x[here]));
  }

  nearest(x, y) {
    const {x: xs, y: ys} = this.placed;
    let best = null;
    let least = Infinity;
    for (let node = 0; node < xs.length; node++) {
      const distance = (xs[node] - x) ** 2 + (ys[node] - y) ** 2;
      if (distance < least) [best, least] = [node, distance];
    }
    return best;
  }

  nodeAt(px, py) {
    const x = px / this.scale + this.left;
    const y = py / this.scale + this.top;
    // A finger needs 12 pixels more where nodes are small.
    const slack = Math.max(0, 12 - 10 * this.scale) / this.scale;
    return this.picture.nodes.findIndex((node, i) =>
      Math.abs(this.placed.x[i] - x) <= node.width / 2 + slack && Math.abs(this.placed.y[i] - y) <= node.height / 2 + slack);
  }

  listen() {
    const {canvas} = this;
    const pointers = new Map();
    let moved = 0;
    const place = event => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener("pointerdown", event => {
      if (!this.placed) return;
      const [x, y] = place(event);
      if (!pointers.size) moved = 0;
      pointers.set(event.pointerId, {x, y, overview: x > canvas.clientWidth - OVERVIEW});
      canvas.setPointerCapture(event.pointerId);
      canvas.style.cursor = "grabbing";
      if (pointers.get(event.pointerId).overview) this.goTo(y);
    });
    canvas.addEventListener("pointermove", event => {
      const own = pointers.get(event.pointerId);
      if (!own) return;
      const [x, y] = place(event);
      moved += Math.abs(x - own.x) + Math.abs(y - own.y);
      if (own.overview) {
        this.goTo(y);
      } else if (pointers.size === 1) {
        this.pan(x - own.x, y - own.y);
      } else {
        const other = [...pointers.entries()].find(([id]) => id !== event.pointerId)[1];
        const [before, after] = [Math.hypot(own.x - other.x, own.y - other.y), Math.hypot(x - other.x, y - other.y)];
        this.zoom(after / Math.max(before, 1), (x + other.x) / 2, (y + other.y) / 2);
        this.pan((x - own.x) / 2, (y - own.y) / 2);
      }
      Object.assign(own, {x, y});
    });
    const release = event => {
      const own = pointers.get(event.pointerId);
      pointers.delete(event.pointerId);
      canvas.style.cursor = "";
      if (event.type === "pointerup" && own && !own.overview && moved < 6 && !pointers.size) {
        const found = this.nodeAt(own.x, own.y);
        this.onselect(this, found < 0 ? null : found);
      }
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("wheel", event => {
      if (!this.placed) return;
      event.preventDefault();
      const unit = event.deltaMode === 1 ? 16 : 1;
      if (event.ctrlKey || event.metaKey) this.zoom(Math.exp(-event.deltaY * unit * 0.004), ...place(event));
      else this.pan(-event.deltaX * unit, -event.deltaY * unit);
    }, {passive: false});
    canvas.addEventListener("dblclick", event => this.zoom(1.6, ...place(event)));
    canvas.addEventListener("keydown", event => this.onKey(event));
  }

  onKey(event) {
    if (!this.placed || event.ctrlKey || event.metaKey || event.altKey) return;
    const {key} = event;
    let node;
    if (key.startsWith("Arrow")) node = this.neighbour(key);
    else if (key === "n" || key === "p") node = this.nextChange(key === "n" ? 1 : -1);
    else if (key === "Home" || key === "End") {
      const order = this.placed.y;
      node = order.reduce((best, y, i) => ((key === "Home" ? y < order[best] : y > order[best]) ? i : best), 0);
    } else if (key === "+" || key === "=") this.zoom(1.3);
    else if (key === "-") this.zoom(1 / 1.3);
    else if (key === "0") this.fit();
    else if (key === "Enter") document.getElementById("details").focus();
    else return;
    event.preventDefault();
    if (node !== undefined && node !== null) {
      this.select(node, true);
      this.onselect(this, node);
    }
  }

  // The part of the graph at this height of the overview.
  goTo(y) {
    const {height} = this.size();
    this.top = (y / height) * this.placed.height - height / this.scale / 2;
    this.redraw();
  }

  redraw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.draw();
    });
  }

  palette() {
    if (!this.colors) {
      const style = getComputedStyle(document.documentElement);
      const of = name => style.getPropertyValue(`--${name}`).trim();
      this.colors = {back: of("graph-back"), text: of("text"), dim: of("dim"), edge: of("edge"), selected: of("selected"),
        match: of("match"), card: of("card"), line: of("line"), layouts: PALETTES[this.theme.matches ? "dark" : "light"]};
      for (const kind of COLORS) this.colors[kind] = [of(kind), of(`${kind}-line`)];
    }
    return this.colors;
  }

  draw() {
    const {context, canvas, ratio, scale} = this;
    const colors = this.palette();
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = colors.back;
    context.fillRect(0, 0, canvas.width, canvas.height);
    if (!this.placed) return;
    const {width, height} = this.size();
    const box = {left: this.left, top: this.top, right: this.left + width / scale, bottom: this.top + height / scale};
    context.setTransform(ratio * scale, 0, 0, ratio * scale, -this.left * ratio * scale, -this.top * ratio * scale);
    this.drawLinks(box, colors);
    this.drawNodes(box, colors);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.drawOverview(box, colors, width, height);
  }

  drawLinks(box, colors) {
    const {context, scale, picture, placed} = this;
    const groups = new Map();
    const labels = new Map();
    const lines = [];
    picture.links.forEach((link, l) => {
      const near = link.from === this.selected;
      link.to.forEach((target, t) => {
        const [top, bottom, left, right] = link.spans[t];
        if (Math.max(top, bottom) < box.top || Math.min(top, bottom) > box.bottom || right < box.left || left > box.right) return;
        const bold = near || target === this.selected;
        const whole = placed.routes[l][t];
        // A value is one line to its lowest target, and a leg from there to each other.
        const route = bold || t === link.lowest ? between(whole, box.top, box.bottom) : whole.slice(-4);
        if (route[1] > box.bottom) return;
        const key = `${link.kind} ${this.colorOf(link, colors)} ${bold}`;
        if (!groups.has(key)) groups.set(key, {link, bold, routes: []});
        groups.get(key).routes.push(route);
        if (scale > LABEL_ZOOM) lines.push(route);
        // One label a node: the legal graph's, if there are two.
        if (scale > LABEL_ZOOM && whole[1] >= box.top && (link.kind !== "removed" || !labels.has(link.from))) {
          labels.set(link.from, [link, whole]);
        }
      });
    });
    for (const {link, bold, routes} of groups.values()) {
      context.beginPath();
      for (const route of routes) trace(context, route, scale);
      context.strokeStyle = bold ? colors.selected : this.colorOf(link, colors);
      context.lineWidth = Math.max(bold ? 3 : 1.6, 0.7 / scale);
      context.setLineDash(link.kind === "removed" && scale > TEXT_ZOOM ? [5, 4] : []);
      context.stroke();
    }
    context.setLineDash([]);
    this.drawLabels([...labels.values()].map(([link, route]) => ({link, route})), lines, colors);
  }

  // Labels of lines, beside their start: right or left of it, wherever there is no line and no other label. Otherwise there
  // is none, until the zoom makes room.
  drawLabels(labels, lines, colors) {
    const {context, scale} = this;
    const size = 11 / Math.sqrt(Math.max(scale, 1));
    context.font = `${size}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    context.textAlign = "left";
    const taken = [];
    labels.sort((a, b) => a.route[1] - b.route[1] || a.route[0] - b.route[0]);
    for (const {link, route: [x, y]} of labels) {
      const wide = context.measureText(link.label).width;
      const boxes = [x + 6, x - 6 - wide].map(left => ({left: left - 2, right: left + wide + 2, top: y + 4, bottom: y + 4 + 1.3 * size}));
      const isFree = box => !taken.some(other => overlap(box, other)) && !lines.some(line => crosses(line, box));
      const box = boxes.find(isFree);
      if (!box) continue;
      taken.push(box);
      context.fillStyle = colors.back;
      context.fillRect(box.left, box.top, box.right - box.left, box.bottom - box.top);
      context.fillStyle = link.kind === "removed" ? colors.removed[1] : colors.dim;
      context.fillText(link.label, box.left + 2, (box.top + box.bottom) / 2);
    }
  }

  colorOf(link, colors) {
    if (link.kind === "removed") return colors.removed[1];
    const rank = link.layout ? this.picture.layouts.indexOf(link.layout) : -1;
    return rank < 0 ? colors.edge : colors.layouts[rank % colors.layouts.length];
  }

  drawNodes(box, colors) {
    const {context, scale, picture, placed} = this;
    const detailed = scale > TEXT_ZOOM;
    const byKind = new Map();
    const shown = [];
    picture.nodes.forEach((node, i) => {
      const [x, y, w, h] = [placed.x[i], placed.y[i], node.width, node.height];
      if (x + w / 2 < box.left || x - w / 2 > box.right || y + h / 2 < box.top || y - h / 2 > box.bottom) return;
      if (!byKind.has(node.kind)) byKind.set(node.kind, []);
      byKind.get(node.kind).push(i);
      shown.push(i);
    });
    for (const [kind, own] of byKind) {
      context.beginPath();
      // Below the size of text, a change must still be seen.
      const least = CHANGES.has(kind) ? 4 / scale : 1.5 / scale;
      for (const i of own) {
        const node = picture.nodes[i];
        const [w, h] = [Math.max(node.width, least), Math.max(node.height, least)];
        if (detailed) context.roundRect(placed.x[i] - w / 2, placed.y[i] - h / 2, w, h, node.io ? h / 2 : 6);
        else context.rect(placed.x[i] - w / 2, placed.y[i] - h / 2, w, h);
      }
      context.fillStyle = detailed || !CHANGES.has(kind) ? colors[kind][0] : colors[kind][1];
      if (!detailed && kind === "kept") context.fillStyle = colors[kind][1];
      context.fill();
      if (!detailed) continue;
      context.setLineDash(kind === "removed" ? [5, 3] : []);
      context.lineWidth = kind === "conversion" ? 2.5 : 1.3;
      context.strokeStyle = colors[kind][1];
      context.stroke();
    }
    context.setLineDash([]);
    for (const [color, wide, which] of [[colors.match, 3, i => this.matches.has(i)], [colors.selected, 4, i => i === this.selected]]) {
      context.strokeStyle = color;
      context.lineWidth = Math.max(wide, 2 / scale);
      for (const i of shown.filter(which)) {
        const {width: w, height: h, io} = picture.nodes[i];
        context.beginPath();
        context.roundRect(placed.x[i] - w / 2 - 3, placed.y[i] - h / 2 - 3, w + 6, h + 6, io ? h / 2 + 3 : 8);
        context.stroke();
      }
    }
    if (detailed) this.drawTexts(shown, colors);
  }

  drawTexts(shown, colors) {
    const {context, picture, placed} = this;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillStyle = colors.text;
    context.font = "600 13px system-ui, sans-serif";
    for (const i of shown) {
      const {shownTitle, line, width} = picture.nodes[i];
      context.fillText(shownTitle, placed.x[i], placed.y[i] - (line ? 8 : 0), width - 10);
    }
    context.font = "12px system-ui, sans-serif";
    for (const i of shown) {
      const {shownLine, width} = picture.nodes[i];
      if (shownLine) context.fillText(shownLine, placed.x[i], placed.y[i] + 10, width - 10);
    }
  }

  // A strip with the height of the whole graph: its changes, and the part that is in view.
  drawOverview(box, colors, width, height) {
    const {context, picture, placed} = this;
    const total = Math.max(placed.height, 1);
    context.fillStyle = colors.card;
    context.fillRect(width, 0, OVERVIEW, height);
    const marks = new Map();
    for (const i of this.changed) {
      const {kind} = picture.nodes[i];
      // Conversions last, over the others.
      const y = Math.round((placed.y[i] / total) * (height - 3));
      const rank = kind === "conversion" ? 4 : kind === "part" ? 3 : kind === "removed" ? 2 : kind === "added" ? 1 : 0;
      if (!marks.has(y) || marks.get(y).rank < rank) marks.set(y, {rank, kind});
    }
    for (const [y, {kind}] of marks) {
      const inset = kind === "relaid" ? 7 : 3;
      context.fillStyle = colors[kind][1];
      context.fillRect(width + inset, y, OVERVIEW - 2 * inset, 2.5);
    }
    for (const i of this.matches) {
      context.fillStyle = colors.match;
      context.fillRect(width, (placed.y[i] / total) * (height - 3), OVERVIEW, 2.5);
    }
    context.strokeStyle = colors.text;
    context.lineWidth = 1.5;
    const top = Math.max(box.top / total, 0) * height;
    const bottom = Math.min(box.bottom / total, 1) * height;
    context.strokeRect(width + 1, top + 1, OVERVIEW - 2, Math.max(bottom - top - 2, 4));
  }
}

function sides(route) {
  let left = Infinity;
  let right = -Infinity;
  for (let i = 0; i < route.length; i += 2) {
    left = Math.min(left, route[i]);
    right = Math.max(right, route[i]);
  }
  return [left, right];
}

// The part of a route that goes through these heights. A route with bends goes down.
function between(route, top, bottom) {
  const first = (height, from) => {
    let [low, high] = [from, route.length / 2];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (route[2 * middle + 1] < height) low = middle + 1;
      else high = middle;
    }
    return low;
  };
  if (route.length === 4) return route;
  const start = Math.max(first(top, 0) - 1, 0);
  return route.slice(2 * start, 2 * (first(bottom, start) + 1));
}

const overlap = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;

// Whether a line goes through a box: between two of its points it stays in the box around them.
function crosses(route, box) {
  for (let i = 2; i < route.length; i += 2) {
    let [x, y, endX, endY] = [route[i - 2], route[i - 1], route[i], route[i + 1]];
    if (Math.max(y, endY) < box.top || Math.min(y, endY) > box.bottom) continue;
    // The curve of `trace` in steps; a straight line needs one.
    const steps = x === endX ? 1 : 8;
    const [fromX, fromY] = [x, y];
    for (let step = 1; step <= steps; step++) {
      const t = step / steps;
      const nextX = fromX + (endX - fromX) * t * t * (3 - 2 * t);
      // The y of a Bézier curve whose inner points are both at the middle height.
      const nextY = fromY + (endY - fromY) * (1.5 * t * (1 - t) + t * t * t);
      const part = {left: Math.min(x, nextX), right: Math.max(x, nextX), top: Math.min(y, nextY), bottom: Math.max(y, nextY)};
      if (part.left < box.right && box.left < part.right && part.top < box.bottom && box.top < part.bottom) return true;
      [x, y] = [nextX, nextY];
    }
  }
  return false;
}

// A text of at most this width. The ends of a name tell more than its middle.
function shortened(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  const letters = [...text.slice(0, 500), ...text.slice(500).slice(-500)];
  const cut = most => `${letters.slice(0, Math.floor(most / 2)).join("")}…${letters.slice(letters.length - Math.ceil(most / 2)).join("")}`;
  let [fits, many] = [0, letters.length];
  while (many - fits > 1) {
    const middle = (fits + many) >> 1;
    if (context.measureText(cut(middle)).width <= width) fits = middle; else many = middle;
  }
  return cut(fits);
}

// A link: straight where it is small, else smooth between its points.
function trace(context, route, scale) {
  context.moveTo(route[0], route[1]);
  for (let i = 2; i < route.length; i += 2) {
    const [x, y, px, py] = [route[i], route[i + 1], route[i - 2], route[i - 1]];
    if (scale < TEXT_ZOOM || x === px) context.lineTo(x, y);
    else context.bezierCurveTo(px, (py + y) / 2, x, (py + y) / 2, x, y);
  }
}
