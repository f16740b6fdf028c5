// A layered layout (Sugiyama, Tagawa, Toda 1981) of a directed graph that is mostly a long chain, as ML graphs are.
//
// One value is one link with several targets, and its way down is one chain of bend points for all of them. The order
// in a layer comes from barycenter sweeps, and the coordinates from sweeps that solve each layer exactly: the least
// squares of the distances to the neighbours' positions, with the gaps kept, is an isotonic regression (pool adjacent
// violators). Every step is linear in the vertices, bends included, times the number of sweeps.

const LAYER_GAP = 44;
const NODE_GAP = 28;
const BEND_GAP = 16;
const ORDER_SWEEPS = 8;
const PLACE_SWEEPS = 12;

// `nodes`: [{width, height}], `links`: [{from, to: [node, ...]}]. Returns {x, y: centres of nodes, width, height,
// layers: layer of each node, routes: for each link, for each target, a list of points [x, y, x, y, ...]}.
export function layered(nodes, links) {
  const graph = acyclic(nodes.length, links);
  const layer = layersOf(links, graph);
  const full = withBends(nodes, links, graph, layer);
  order(full);
  place(full);
  return finish(nodes, links, full, layer);
}

// The successors and predecessors without the edges that close a cycle, and the nodes in topological order.
function acyclic(count, links) {
  const successors = Array.from({length: count}, () => []);
  const missing = new Int32Array(count);
  for (const {from, to} of links) {
    for (const target of to) {
      if (target === from) continue;
      successors[from].push(target);
      missing[target] += 1;
    }
  }
  const topological = [];
  const position = new Int32Array(count).fill(-1);
  const ready = [];
  for (let node = count - 1; node >= 0; node--) if (missing[node] === 0) ready.push(node);
  let next = 0;
  while (topological.length < count) {
    if (!ready.length) {
      while (position[next] >= 0) next += 1;
      ready.push(next);
    }
    const node = ready.pop();
    if (position[node] >= 0) continue;
    position[node] = topological.length;
    topological.push(node);
    for (let i = successors[node].length - 1; i >= 0; i--) {
      const target = successors[node][i];
      missing[target] -= 1;
      if (missing[target] === 0) ready.push(target);
    }
  }
  const predecessors = Array.from({length: count}, () => []);
  for (let node = 0; node < count; node++) {
    successors[node] = successors[node].filter(target => position[target] > position[node]);
    for (const target of successors[node]) predecessors[target].push(node);
  }
  return {successors, predecessors, topological, position};
}

// The longest path from the sources, and then, from the last node to the first, each node as far down as its consumers let
// it, with all nodes that lead to nothing else. They stay where that makes more links longer than shorter. So what depends
// on an early value stands beside its consumer: an attention's keys and values of a text, a scale of a time step.
function layersOf(links, {successors, predecessors, topological, position}) {
  const layer = new Int32Array(topological.length);
  for (const node of topological) {
    for (const before of predecessors[node]) layer[node] = Math.max(layer[node], layer[before] + 1);
  }
  const backwards = topological.slice().reverse();
  const lowest = (node, layers) => successors[node].reduce((least, after) => Math.min(least, layers[after]), Infinity) - 1;
  // The first node on all ways down from a node, its immediate post-dominator (Cooper, Harvey, Kennedy 2001); -1: there
  // is none.
  const joined = new Int32Array(topological.length).fill(-1);
  const latest = layer.slice();
  for (const node of backwards) {
    if (!successors[node].length) continue;
    latest[node] = lowest(node, latest);
    joined[node] = successors[node].reduce((a, b) => {
      while (a !== b && a >= 0 && b >= 0) {
        if (position[a] < position[b]) a = joined[a];
        else b = joined[b];
      }
      return a === b ? a : -1;
    });
  }
  // The links that get longer where a node and all that it post-dominates move down: those from outside. A link is as long
  // as the way to its lowest target.
  const longer = new Int32Array(topological.length);
  const shorter = new Int32Array(topological.length);
  for (const {from, to} of links) {
    const forward = to.filter(target => position[target] > position[from]);
    if (!forward.length) continue;
    shorter[from] += 1;
    longer[forward.reduce((a, b) => (latest[a] < latest[b] ? b : a))] += 1;
    if (joined[from] >= 0) longer[joined[from]] -= 1;
  }
  for (const node of topological) if (joined[node] >= 0) longer[joined[node]] += longer[node];
  const moved = new Int32Array(topological.length);
  for (const node of backwards) {
    moved[node] = joined[node] >= 0 ? moved[joined[node]] : 0;
    if (shorter[node] && longer[node] <= shorter[node]) moved[node] = lowest(node, layer) - layer[node];
    layer[node] += moved[node];
  }
  return layer;
}

// The vertices are the nodes and one bend for each link in each layer that it passes.
function withBends(nodes, links, {position}, layer) {
  const widths = nodes.map(node => node.width);
  const at = Array.from(layer);
  const up = nodes.map(() => []);
  const down = nodes.map(() => []);
  const chains = [];
  for (const {from, to} of links) {
    const forward = to.filter(target => position[target] > position[from]);
    const chain = [];
    let last = from;
    const deepest = forward.reduce((most, target) => Math.max(most, layer[target]), 0);
    for (let depth = layer[from] + 1; depth < deepest; depth++) {
      const bend = at.length;
      widths.push(0);
      at.push(depth);
      up.push([last]);
      down.push([]);
      down[last].push(bend);
      chain.push(bend);
      last = bend;
    }
    for (const target of new Set(forward)) {
      const above = layer[target] - layer[from] === 1 ? from : chain[layer[target] - layer[from] - 2];
      up[target].push(above);
      down[above].push(target);
    }
    chains.push(chain);
  }
  const layers = Array.from({length: at.reduce((most, depth) => Math.max(most, depth), -1) + 1}, () => []);
  return {count: nodes.length, widths, at, up, down, chains, layers, position};
}

function order(full) {
  const {count, at, up, down, layers} = full;
  const total = at.length;
  // Depth first from the top: what hangs together stays together.
  const seen = new Uint8Array(total);
  const roots = [];
  for (let vertex = 0; vertex < total; vertex++) if (!up[vertex].length) roots.push(vertex);
  roots.sort((a, b) => at[a] - at[b] || a - b);
  for (const root of roots) {
    const stack = [root];
    while (stack.length) {
      const vertex = stack.pop();
      if (seen[vertex]) continue;
      seen[vertex] = 1;
      layers[at[vertex]].push(vertex);
      for (let i = down[vertex].length - 1; i >= 0; i--) stack.push(down[vertex][i]);
    }
  }
  const rank = new Float64Array(total);
  const number = () => layers.forEach(layer => layer.forEach((vertex, i) => { rank[vertex] = i; }));
  number();
  let best = layers.map(layer => layer.slice());
  let least = crossings(layers, down, rank);
  const key = new Float64Array(total);
  for (let sweep = 0; sweep < ORDER_SWEEPS && least > 0; sweep++) {
    const downwards = sweep % 2 === 0;
    const neighbours = downwards ? up : down;
    for (let i = 0; i < layers.length; i++) {
      const layer = layers[downwards ? i : layers.length - 1 - i];
      if (layer.length < 2) continue;
      for (const vertex of layer) {
        const near = neighbours[vertex];
        let sum = 0;
        for (const other of near) sum += rank[other];
        key[vertex] = near.length ? sum / near.length : rank[vertex];
      }
      layer.sort((a, b) => key[a] - key[b] || rank[a] - rank[b]);
      layer.forEach((vertex, j) => { rank[vertex] = j; });
    }
    const found = crossings(layers, down, rank);
    if (found < least) {
      least = found;
      best = layers.map(layer => layer.slice());
    }
  }
  full.layers = best;
}

// The number of crossings between neighbouring layers (Barth, Juenger, Mutzel 2002: an accumulator tree).
function crossings(layers, down, rank) {
  let total = 0;
  for (let i = 0; i + 1 < layers.length; i++) {
    const below = layers[i + 1].length;
    if (layers[i].length < 2 || below < 2) continue;
    const tree = new Int32Array(below + 1);
    let entered = 0;
    for (const vertex of layers[i]) {
      const ends = down[vertex].map(other => rank[other]).sort((a, b) => a - b);
      for (const end of ends) {
        let smaller = 0;
        for (let j = end + 1; j > 0; j -= j & -j) smaller += tree[j];
        total += entered - smaller;
      }
      for (const end of ends) {
        for (let j = end + 1; j <= below; j += j & -j) tree[j] += 1;
        entered += 1;
      }
    }
  }
  return total;
}

function place(full) {
  const {count, widths, at, up, down, layers} = full;
  const x = new Float64Array(at.length);
  const gap = (a, b) => (widths[a] + widths[b]) / 2 + (a < count && b < count ? NODE_GAP : BEND_GAP);
  for (const layer of layers) {
    for (let i = 1; i < layer.length; i++) x[layer[i]] = x[layer[i - 1]] + gap(layer[i - 1], layer[i]);
    const middle = layer.length ? (x[layer[0]] + x[layer[layer.length - 1]]) / 2 : 0;
    for (const vertex of layer) x[vertex] -= middle;
  }
  // A link between two bends should be straight, so it pulls more.
  const pull = (a, b) => (a >= count && b >= count ? 8 : a >= count || b >= count ? 2 : 1);
  const wanted = new Float64Array(at.length);
  const weight = new Float64Array(at.length);
  for (let sweep = 0; sweep < PLACE_SWEEPS; sweep++) {
    const downwards = sweep % 2 === 0;
    const both = sweep >= PLACE_SWEEPS - 2;
    for (let i = 0; i < layers.length; i++) {
      const layer = layers[downwards ? i : layers.length - 1 - i];
      for (const vertex of layer) {
        let sum = 0;
        let weights = 0;
        const add = other => {
          const own = pull(vertex, other);
          sum += own * x[other];
          weights += own;
        };
        if (downwards || both) up[vertex].forEach(add);
        if (!downwards || both) down[vertex].forEach(add);
        wanted[vertex] = weights ? sum / weights : x[vertex];
        weight[vertex] = weights || 0.01;
      }
      settle(layer, wanted, weight, gap, x);
    }
  }
  full.x = x;
}

// The x of each vertex of a layer: weighted least squares to the wanted ones, with the gaps kept.
function settle(layer, wanted, weight, gap, x) {
  if (layer.length === 1) {
    x[layer[0]] = wanted[layer[0]];
    return;
  }
  const offsets = new Float64Array(layer.length);
  const blocks = [];
  for (let i = 0; i < layer.length; i++) {
    if (i) offsets[i] = offsets[i - 1] + gap(layer[i - 1], layer[i]);
    let block = {first: i, weight: weight[layer[i]], mean: wanted[layer[i]] - offsets[i]};
    while (blocks.length && blocks[blocks.length - 1].mean >= block.mean) {
      const before = blocks.pop();
      const sum = before.weight + block.weight;
      block = {first: before.first, weight: sum, mean: (before.mean * before.weight + block.mean * block.weight) / sum};
    }
    blocks.push(block);
  }
  blocks.forEach((block, b) => {
    const end = b + 1 < blocks.length ? blocks[b + 1].first : layer.length;
    for (let i = block.first; i < end; i++) x[layer[i]] = block.mean + offsets[i];
  });
}

function finish(nodes, links, {count, at, chains, layers, position, x, widths}, layer) {
  const top = new Float64Array(layers.length + 1);
  const heights = layers.map(vertices =>
    vertices.reduce((most, vertex) => (vertex < count ? Math.max(most, nodes[vertex].height) : most), 0));
  heights.forEach((height, depth) => { top[depth + 1] = top[depth] + height + LAYER_GAP; });
  const middle = depth => top[depth] + heights[depth] / 2;
  let left = 0;
  let right = 0;
  for (let vertex = 0; vertex < at.length; vertex++) {
    left = Math.min(left, x[vertex] - widths[vertex] / 2);
    right = Math.max(right, x[vertex] + widths[vertex] / 2);
  }
  const xs = new Float64Array(count);
  const ys = new Float64Array(count);
  for (let node = 0; node < count; node++) {
    xs[node] = x[node] - left;
    ys[node] = middle(layer[node]);
  }
  const entries = enterings(links, layer, chains, x, count);
  const routes = links.map(({from, to}, l) => to.map((target, t) => {
    const points = [xs[from], ys[from] + nodes[from].height / 2];
    if (position[target] > position[from]) {
      for (const bend of chains[l].slice(0, layer[target] - layer[from] - 1)) {
        points.push(x[bend] - left, top[at[bend]], x[bend] - left, top[at[bend]] + heights[at[bend]]);
      }
    }
    const width = nodes[target].width;
    points.push(xs[target] + entries[l][t] * width * 0.7, ys[target] - nodes[target].height / 2);
    return straightened(points);
  }));
  return {x: xs, y: ys, width: right - left, height: Math.max(top[layers.length] - LAYER_GAP, 0), layers: layer, routes};
}

// Where each link enters its target, from -0.5 to 0.5 of the width, in the order in which the links come from above.
function enterings(links, layer, chains, x, count) {
  const incoming = Array.from({length: count}, () => []);
  const entries = links.map(({to}) => new Float64Array(to.length));
  links.forEach(({from, to}, l) => to.forEach((target, t) => {
    const passed = layer[target] - layer[from] - 1;
    const above = passed > 0 && chains[l].length >= passed ? chains[l][passed - 1] : from;
    incoming[target].push({l, t, x: x[above]});
  }));
  for (const own of incoming) {
    own.sort((a, b) => a.x - b.x);
    own.forEach(({l, t}, i) => { entries[l][t] = own.length > 1 ? (i + 0.5) / own.length - 0.5 : 0; });
  }
  return entries;
}

// Without the points between two others on a vertical line.
function straightened(points) {
  const kept = points.slice(0, 2);
  for (let i = 2; i + 2 < points.length; i += 2) {
    const same = Math.abs(points[i] - kept[kept.length - 2]) < 0.5 && Math.abs(points[i] - points[i + 2]) < 0.5;
    if (!same) kept.push(points[i], points[i + 1]);
  }
  kept.push(points[points.length - 2], points[points.length - 1]);
  return kept;
}
