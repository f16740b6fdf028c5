"""The scripts of the page alone, in a real browser: the picture of a model, its layout, its canvas and its texts."""

from __future__ import annotations

import pytest
from http_bodies import endless_loop
from playwright.sync_api import Page


def test_the_nodes_of_a_conversion_are_one_conversion(page: Page) -> None:
    kinds = page.evaluate(
        """async () => {
            const {pictureOf} = await import("/static/picture.js");
            const value = name => ({name, dtype: "float", shape: [], layout: null, bytes: 64, constant: false});
            const node = (operator, input, output, source, conversions) => ({name: operator, operator, domain: "",
                attributes: {}, inputs: [input], outputs: [output], within: null, bodies: [], source, conversions});
            const graph = (values, nodes) => ({inputs: [0], outputs: [values.length - 1], values, nodes});
            const source = graph([value("x"), value("y")], [node("Relu", 0, 1, null, [])]);
            const legal = graph(["x", "a", "b", "c", "y"].map(value), [node("Reshape", 0, 1, null, [0]),
                node("Transpose", 1, 2, null, [0]), node("Unsqueeze", 2, 3, null, [0]), node("Relu", 3, 4, 0, [])]);
            const report = {conversions: [{bytes: 128}]};
            return pictureOf({source, legal, report}, "after", false).nodes.filter(each => !each.io)
                .map(each => [each.title, each.kind, each.main ?? null, each.line]);
        }"""
    )
    main = "Transpose 'Transpose'"
    assert sorted(kinds) == [
        ["Relu", "kept", None, "scalar"],
        ["Reshape", "part", main, "scalar"],
        ["Transpose", "conversion", None, "reversed · 128 bytes"],
        ["Unsqueeze", "part", main, "scalar"],
    ]


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("NCHW", "NCHW"),
        ("N[a=32]HWC", "N[a=32]HWC"),
        ("2/32,1,2%32", "axes in the order 2 (blocks of 32), 1, 2 (in blocks of 32)"),
        ("1%64/16", "axes in the order 1 (blocks of 16 in blocks of 64)"),
        (",".join(["1%64/16"] * 9), ",".join(["1%64/16"] * 9)),
    ],
)
def test_the_factors_of_an_axis_are_words_unless_there_are_many(page: Page, layout: str, words: str) -> None:
    assert page.evaluate("async layout => (await import('/static/text.js')).layoutText(layout)", layout) == words


def test_the_same_order_of_other_axes_is_another_text(page: Page) -> None:
    texts = page.evaluate("import('/static/text.js').then(({layoutText}) => ['0,1', '0,1,2', '0,2,1'].map(layoutText))")
    assert texts == ["the source's order of 2 axes", "the source's order of 3 axes", "axes in the order 0, 2, 1"]


def test_labels_of_lines_lie_neither_on_lines_nor_on_each_other(page: Page) -> None:
    drawn_at = page.evaluate(
        """async () => {
            const {GraphView} = await import("/static/canvas.js");
            const view = new GraphView("", () => {});
            const texts = [];
            view.context.fillText = (text, x, y) => texts.push([text, Math.round(x), Math.round(y)]);
            const label = (label, x) => ({link: {label, kind: "kept"}, route: [x, 0, x, 100]});
            const labels = [label("first", 0), label("second", 10), label("third", 20), label("fourth", 300)];
            view.drawLabels(labels, labels.map(({route}) => route), {back: "#fff", dim: "#000"});
            view.close();
            return texts.map(([text, x]) => [text, x < {first: 0, second: 10, third: 20, fourth: 300}[text]]);
        }"""
    )
    # The first is left of its line, the third right of it; between the lines there is no room.
    assert drawn_at == [["first", True], ["third", False], ["fourth", False]]


def test_the_body_of_a_loop_hangs_on_what_the_loop_reads(page: Page) -> None:
    links = page.evaluate(
        """async graph => {
            const {pictureOf} = await import("/static/picture.js");
            const headers = {"Content-Type": "application/json"};
            const answer = await fetch("/v1/graph", {method: "POST", headers, body: JSON.stringify({graph})});
            const {nodes, links} = pictureOf(await answer.json(), "before", false);
            return links.flatMap(({from, to}) => to.map(each => `${nodes[from].key} > ${nodes[each].key}`)).sort();
        }""",
        endless_loop(),
    )
    assert links == [
        "Identity 'on' > Loop 'loop'",
        "Loop 'loop' > output y",
        "Neg 'after' > Loop 'loop'",
        "input x > Loop 'loop'",
        "input x > Neg 'after'",
    ]


def test_what_depends_on_an_early_value_stands_beside_its_consumer(page: Page) -> None:
    """A chain of 20 nodes. Each fourth reads a second input, over a branch that divides and joins, as the
    attentions of a diffusion model read the text. A node that leads to an output alone stays below what it reads."""
    layers = page.evaluate(
        """async () => {
            const {layered} = await import("/static/layered.js");
            const nodes = Array.from({length: 22}, () => ({width: 60, height: 40}));
            const node = () => nodes.push({width: 60, height: 40}) - 1;
            const chain = Array.from({length: 20}, (_, i) => i + 2);
            const links = [0, ...chain.slice(0, -1)].map((from, i) => ({from, to: [chain[i]]}));
            const readers = chain.filter((_, i) => i % 4 === 3);
            const branches = readers.map(to => ({to, top: node(), left: node(), right: node()}));
            links.push({from: 1, to: branches.map(({top}) => top)});
            for (const {to, top, left, right} of branches) {
                links.push({from: top, to: [left, right]}, {from: left, to: [to]}, {from: right, to: [to]});
            }
            const output = node();
            links.push({from: chain[9], to: [output]});
            const {layers} = layered(nodes, links);
            return [branches.map(({to, top, left}) => [layers[to] - layers[left], layers[left] - layers[top]]),
                layers[output] - layers[chain[9]]];
        }"""
    )
    assert layers == [[[1, 1]] * 5, 1]


def test_a_layout_has_no_overlaps_and_its_links_go_down(page: Page) -> None:
    """Random layered graphs with shared values, long links and a cycle."""
    faults = page.evaluate(
        """async () => {
            const {layered} = await import("/static/layered.js");
            let seed = 7;
            const random = n => (seed = (seed * 48271) % 2147483647) % n;
            const faults = [];
            for (let round = 0; round < 30; round++) {
                const count = 5 + random(60);
                const nodes = Array.from({length: count}, () => ({width: 40 + random(200), height: 30 + random(20)}));
                const below = from => from + 1 + random(Math.min(20, count - from - 1));
                const links = nodes.slice(0, -1).map((_, from) =>
                    ({from, to: [...new Set(Array.from({length: 1 + random(3)}, () => below(from)))]}));
                if (round % 5 === 0) links.push({from: count - 1, to: [0]});
                const {x, y, width, height, routes, layers} = layered(nodes, links);
                for (let a = 0; a < nodes.length; a++) {
                    const [left, right] = [x[a] - nodes[a].width / 2, x[a] + nodes[a].width / 2];
                    if (!(left > -0.01 && right < width + 0.01)) faults.push("outside");
                    if (!(y[a] + nodes[a].height / 2 < height + 0.01)) faults.push("below");
                    for (let b = 0; b < a; b++) {
                        const apart = Math.abs(x[a] - x[b]) - (nodes[a].width + nodes[b].width) / 2;
                        if (layers[a] === layers[b] && apart < 10) faults.push(`overlap ${round} ${a} ${b}`);
                    }
                }
                links.forEach(({from, to}, l) => to.forEach((target, t) => {
                    const route = routes[l][t];
                    if (from < target) {
                        for (let i = 3; i < route.length; i += 2) if (route[i] < route[i - 2]) faults.push("up");
                    }
                    if (route[1] !== y[from] + nodes[from].height / 2) faults.push("start");
                    if (route[route.length - 1] !== y[target] - nodes[target].height / 2) faults.push("end");
                }));
            }
            return faults;
        }"""
    )
    assert faults == []


@pytest.mark.parametrize("fault", ["cut off", "restarted"])
def test_a_job_is_followed_across_broken_streams_and_a_restart_behind_a_proxy(page: Page, fault: str) -> None:
    """A proxy that cuts off each stream while the job runs, or that does not reach its server for a time."""
    told = page.evaluate(
        """async fault => {
            const {follow} = await import("/static/service.js");
            const [later, told] = [window.setTimeout, []];
            window.setTimeout = work => later(work, 0);
            let asked = 0;
            window.fetch = async path => {
                if (fault === "cut off" && path.endsWith("/events")) throw new TypeError("cut off");
                asked += !path.endsWith("/events");
                const isAway = fault === "restarted" && asked < 9;
                if (isAway) return new Response("<html>Bad Gateway</html>", {status: 502});
                const state = asked < 30 && fault === "cut off" ? "running" : "succeeded";
                return new Response(JSON.stringify({id: "1", state}));
            };
            const job = await follow("1", name => told.push(name));
            return [job.state, [...new Set(told)]];
        }""",
        fault,
    )
    assert told == ["succeeded", ["found"] if fault == "cut off" else ["lost"]]
