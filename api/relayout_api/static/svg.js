// The picture as an SVG file: light colors, no script, no style sheet.

const FILL = {kept: "#eceef2", relaid: "#dbe8fe", removed: "#fdecea", added: "#e0f3e5", conversion: "#ffe2a8", part: "#fff3dc"};
const LINE = {kept: "#8a93a0", relaid: "#2459cf", removed: "#b42318", added: "#17713a", conversion: "#9a5b00", part: "#9a5b00"};
const MARGIN = 20;

const escaped = text => text.replace(/[&<>"]/g, letter => ({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})[letter])
  // Control characters are not allowed in XML.
  .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd");
const rounded = number => Math.round(number * 10) / 10;

export function svgOf(picture, placed, name) {
  const [width, height] = [Math.ceil(placed.width + 2 * MARGIN), Math.ceil(placed.height + 2 * MARGIN)];
  const parts = [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="${-MARGIN} ${-MARGIN} ${width} ${height}" width="${width}" height="${height}" font-family="sans-serif" font-size="12" text-anchor="middle">`,
    `<title>${escaped(name)}</title>`,
    `<rect x="${-MARGIN}" y="${-MARGIN}" width="${width}" height="${height}" fill="#ffffff"/>`,
  ];
  picture.links.forEach((link, l) => {
    const removed = link.kind === "removed";
    for (const route of placed.routes[l]) {
      parts.push(`<path d="${path(route)}" fill="none" stroke="${removed ? LINE.removed : link.kind === "added" ? LINE.added : "#7a828e"}" stroke-width="1.5"${removed ? ' stroke-dasharray="5 4"' : ""}><title>${escaped(`${link.value.name} ${link.label}`)}</title></path>`);
    }
  });
  picture.nodes.forEach((node, i) => {
    const [x, y] = [rounded(placed.x[i]), rounded(placed.y[i])];
    parts.push(
      `<g><title>${escaped(node.key)}</title><rect x="${rounded(x - node.width / 2)}" y="${rounded(y - node.height / 2)}" width="${rounded(node.width)}" height="${node.height}" rx="${node.io ? node.height / 2 : 6}" fill="${FILL[node.kind]}" stroke="${LINE[node.kind]}" stroke-width="${node.kind === "conversion" ? 2.5 : 1.3}"${node.kind === "removed" ? ' stroke-dasharray="5 3"' : ""}/>`,
      `<text x="${x}" y="${y + (node.line ? -4 : 4)}" font-weight="600">${escaped(node.shownTitle)}</text>`,
      node.line ? `<text x="${x}" y="${y + 13}">${escaped(node.shownLine)}</text>` : "",
      "</g>",
    );
  });
  parts.push("</svg>");
  return parts.join("\n");
}

function path(route) {
  let text = `M${rounded(route[0])} ${rounded(route[1])}`;
  for (let i = 2; i < route.length; i += 2) {
    const [x, y, px, py] = [route[i], route[i + 1], route[i - 2], route[i - 1]].map(rounded);
    text += x === px ? `L${x} ${y}` : `C${px} ${rounded((py + y) / 2)} ${x} ${rounded((py + y) / 2)} ${x} ${y}`;
  }
  return text;
}
