"""The page in a real browser, served by a real server."""

from __future__ import annotations

import gzip
import io
import json
import xml.etree.ElementTree as ElementTree
from base64 import b64encode
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import pytest
from http_bodies import endless_loop, onnx_bytes, onnx_model
from http_jobs import submit_loop
from http_server import MAX_BODY, Server
from playwright.sync_api import FilePayload, Locator, Page, Request, expect

from relayout_api.examples import GRAPH

_AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
_PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}


def drop(page: Page, name: str, content: bytes) -> None:
    """Drop a file on the page's heading, far from any field."""
    data = page.evaluate_handle(
        """([name, content]) => {
            const data = new DataTransfer();
            data.items.add(new File([Uint8Array.from(atob(content), letter => letter.charCodeAt(0))], name));
            return data;
        }""",
        [name, b64encode(content).decode()],
    )
    page.dispatch_event("h1", "dragenter", {"dataTransfer": data})
    page.dispatch_event("h1", "drop", {"dataTransfer": data})


def drawn(page: Page, views: int = 1) -> Locator:
    """The graphs' canvases, when they are drawn."""
    expect(page.locator(".view[aria-busy=false]")).to_have_count(views)
    return page.locator(".view canvas")


def legalize(page: Page, backend: str = "nhwc", content: bytes | None = None) -> None:
    drop(page, "net.onnx", content or onnx_bytes())
    page.select_option("#backend", backend)
    page.click("#run:not([disabled])")
    expect(page.locator("#result")).to_be_visible()
    drawn(page)


def serious(page: Page) -> list[tuple[str, Any]]:
    """The serious findings of axe-core on the page as it is. The page has it no earlier: reading it takes as long as
    the page itself."""
    page.evaluate(_AXE)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    bad = [each for each in found["violations"] if each["impact"] in ("serious", "critical")]
    return [(each["id"], [node["target"] for node in each["nodes"]]) for each in bad]


def test_the_first_screen_says_what_to_do(page: Page) -> None:
    expect(page.get_by_text("Drop a model anywhere on this page")).to_be_visible()
    expect(page.locator("#run")).to_be_disabled()
    expect(page.locator("#graph")).to_be_hidden()
    expect(page.get_by_text("Choose a model first.")).to_be_visible()
    assert serious(page) == []


def test_a_dropped_model_is_drawn_and_its_changes_after_it_is_legalized(page: Page) -> None:
    drop(page, "net.onnx", onnx_bytes())
    expect(drawn(page)).to_have_attribute("aria-label", "The model: 6 nodes, 0 changes")
    page.select_option("#backend", "nhwc")
    page.click("#run")
    expect(page.locator(".headline")).to_have_text("2 transposes of 2 removed, 0 left.")
    expect(page.locator("#summary")).to_contain_text("Proved: no legal graph costs less.")
    # Two transposes are removed, and the two operators between them have another layout.
    expect(drawn(page)).to_have_attribute("aria-label", "Changes: 6 nodes, 4 changes")
    page.click("#next-change")
    expect(page.locator("#details")).to_contain_text("This transpose is no longer needed")
    page.get_by_role("button", name="Side by side").click()
    drawn(page, 2)
    page.locator("#tables").get_by_role("button", name="Conv").click()
    expect(page.locator("#details")).to_contain_text("The backend requires this layout.")
    expect(page.locator("#details table").first).to_contain_text("chosen")


def test_the_details_are_those_of_the_model_while_no_node_is_selected(page: Page) -> None:
    model = onnx_model()
    model.producer_name = "acme-export"
    model.graph.initializer.add(name="scale", data_type=onnx.TensorProto.FLOAT, dims=[1], float_data=[0.1])
    model.graph.node.add(op_type="Mul", input=["c", "scale"], output=["d"], name="scaled")
    model.graph.node[3].input[0] = "d"
    model.graph.node.sort(key=lambda node: node.op_type == "Transpose" and node.input[0] == "d")
    legalize(page, content=model.SerializeToString())
    details = page.locator("#details")
    for shown in ("ai.onnx 20", "acme-export"):
        expect(details).to_contain_text(shown)
    expect(details).not_to_contain_text("relayout.backend")
    page.get_by_role("button", name="After", exact=True).click()
    drawn(page)
    expect(details).to_contain_text("relayout.backend")
    page.locator("#tables").get_by_role("button", name="scaled").click()
    # Added axes of one element let the product move with the image.
    expect(details).to_contain_text("= [[0.1]]")
    expect(details).not_to_contain_text("acme-export")


def test_the_model_the_report_and_the_picture_can_be_downloaded(page: Page) -> None:
    legalize(page)
    with page.expect_download() as model:
        page.click("#get-model")
    assert model.value.suggested_filename == "net.legal.onnx"
    assert [node.op_type for node in onnx.load(model.value.path()).graph.node] == ["Conv", "Relu"]
    with page.expect_download() as report:
        page.get_by_role("link", name="Download report").click()
    assert json.loads(report.value.path().read_text())["after"]["transposes"] == 0
    with page.expect_download() as picture:
        page.click("#get-svg")
    texts = [text.text for text in ElementTree.parse(picture.value.path()).iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("Transpose") == 2
    assert "NCHW → NHWC" in texts


def test_reasons_and_savings_of_a_conversion(page: Page) -> None:
    page.click("#example")
    page.select_option("#backend", "nchw")
    page.click("#run:not([disabled])")
    # Bytes are in the unit of the command's tables.
    expect(page.locator("#summary")).to_contain_text("3.21 MB")
    expect(page.locator("#summary")).to_contain_text("2 conversions left, because")
    drawn(page)
    expect(page.locator("#tables")).to_contain_text("Conv 'conv' requires NCHW of input 0")
    expect(page.locator("#tables li", has_text="output features")).to_have_text("output features requires NHWC")
    page.click("#explain")
    savings = page.get_by_role("table", name="Cost of each requirement")
    expect(savings).to_contain_text("Conv")
    saved = savings.get_by_role("button", name="Saved", exact=True)
    saved.click()
    expect(savings.locator("th[aria-sort=descending]")).to_have_text("Saved")
    expect(savings.locator("th[aria-sort=none]")).not_to_have_count(0)
    expect(savings.get_by_role("button", name="Conv 'conv'").first).to_be_visible()
    conversions = page.get_by_role("table", name="Conversions and their reasons")
    expect(conversions.get_by_role("row")).to_have_count(3)
    assert serious(page) == []


def test_everything_works_with_the_keyboard_alone(page: Page) -> None:
    page.locator("#example").focus()
    page.keyboard.press("Enter")
    drawn(page)
    page.locator("#backend").focus()
    page.keyboard.type("nhwc")
    page.locator("#run").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#result-title")).to_be_focused()
    drawn(page).focus()
    page.keyboard.press("n")
    expect(page.locator("#status")).to_contain_text("Transpose 'to_nchw', removed NHWC → NCHW")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#status")).to_contain_text("Conv 'conv', other layout NCHW → NHWC")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(page.locator("#details")).to_be_focused()


def test_a_search_marks_nodes_and_goes_to_them(page: Page) -> None:
    legalize(page)
    page.fill("#search", "relu")
    expect(page.locator("#matches")).to_contain_text("1 found")
    page.press("#search", "Enter")
    expect(page.locator("#details h3").first).to_have_text("Relu")
    page.fill("#search", "no such node")
    expect(page.locator("#matches")).to_have_text("nothing found")


def test_a_view_that_changes_its_size_keeps_its_middle(page: Page) -> None:
    legalize(page)
    page.click("#fit")

    def titles_down_the_middle() -> set[str]:
        canvas = drawn(page)
        box = canvas.bounding_box()
        assert box is not None
        found = set()
        for y in range(6, int(box["height"]), 20):
            canvas.click(position={"x": box["width"] / 2, "y": y})
            found.update(page.locator("#details h3").all_inner_texts()[:1])
        return found

    before = titles_down_the_middle()
    assert len(before) > 3
    page.set_viewport_size({"width": 390, "height": 800})
    assert titles_down_the_middle() >= before


@pytest.mark.parametrize("page", [_PHONE], indirect=True)
def test_a_phone_never_scrolls_sideways(page: Page) -> None:
    legalize(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    # A result has the place of the form, which comes back by a button.
    expect(page.locator("#form")).to_be_hidden()
    expect(page.locator("#fold")).to_contain_text("net.onnx for nhwc")
    page.locator("#unfold").tap()
    expect(page.locator("#backend")).to_be_visible()
    page.locator("#unfold").tap()
    # A wide table scrolls in its own box.
    assert page.evaluate("[...document.querySelectorAll('.scroll')].some(box => box.scrollWidth > box.clientWidth)")
    page.get_by_role("button", name="Side by side").tap()
    drawn(page, 2)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert serious(page) == []


@pytest.mark.parametrize("page", [{"color_scheme": "light"}, {"color_scheme": "dark"}], indirect=True)
def test_text_and_lines_have_contrast_in_light_and_dark(page: Page) -> None:
    legalize(page)
    page.click("#next-change")
    assert serious(page) == []
    # axe-core does not look into a canvas. WCAG 2.2: 4.5 for text (1.4.3), 3 for what carries meaning (1.4.11).
    names = ["kept", "relaid", "removed", "added", "conversion", "part"]
    colors = page.evaluate(
        "names => Object.fromEntries(names.map(name => [name, "
        "getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()]))",
        [*names, *(f"{name}-line" for name in names), "text", "dim", "graph-back", "selected", "match", "edge"],
    )
    for name in names:
        assert contrast(colors["text"], colors[name]) >= 4.5, name
        assert contrast(colors[f"{name}-line"], colors["graph-back"]) >= 3, name
    assert contrast(colors["dim"], colors["graph-back"]) >= 4.5
    for name in ("selected", "match", "edge"):
        assert contrast(colors[name], colors["graph-back"]) >= 3, name


def contrast(first: str, second: str) -> float:
    """The contrast ratio of two colors `#rrggbb` (WCAG 2.2)."""

    def luminance(color: str) -> float:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([luminance(first), luminance(second)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("page", [{"forced_colors": "active"}], indirect=True)
def test_the_systems_colors_leave_what_the_colors_tell(page: Page) -> None:
    legalize(page)
    colors = "each => [...each].map(element => getComputedStyle(element).backgroundColor)"
    swatches = page.eval_on_selector_all(".legend i", colors)
    assert len(set(swatches)) == len(swatches) == 6
    pressed, *others = page.eval_on_selector_all("#modes button", colors)
    assert pressed not in others


def test_a_link_to_a_job_shows_its_result(page: Page, server: Server, client: httpx.Client) -> None:
    legalize(page)
    job = page.evaluate("new URLSearchParams(location.search).get('job')")
    page.goto(f"{server.address}/jobs/{job}")
    expect(page.locator(".headline")).to_have_text("2 transposes of 2 removed, 0 left.")
    drawn(page)
    page.goto(f"{server.address}/?job=nothing")
    expect(page.locator("#problem")).to_contain_text("there is no such job")
    expect(page.locator("#problem")).to_contain_text("jobs are deleted 168 hours after their end")
    # It is in sight, above the words for a first visit.
    problem, below = (page.locator(part).bounding_box() for part in ("#problem", "#intro"))
    assert problem is not None
    assert below is not None
    assert problem["y"] < below["y"]


@pytest.mark.parametrize("is_json", [False, True], ids=["onnx", "json"])
def test_a_reload_keeps_the_model_the_backend_and_the_options(page: Page, is_json: bool) -> None:
    page.set_input_files("#file", {"name": "my net.onnx", "mimeType": "", "buffer": onnx_bytes()})
    if is_json:
        page.click("#example")
    drawn(page)
    page.select_option("#backend", "nchw")
    page.locator("summary", has_text="Options").click()
    page.get_by_label("Objective").select_option("transposes")
    page.get_by_label("Input layouts").fill("image = NHWC")
    page.click("#run")
    expect(page.locator("#explain")).to_be_visible()
    page.reload()
    expect(page.locator("#drop-text strong")).to_have_text("example.json" if is_json else "my net.onnx")
    expect(page.locator("#drop-text")).to_contain_text("the model of job")
    expect(page.locator("#backend")).to_have_value("nchw")
    expect(page.get_by_label("Objective")).to_have_value("transposes")
    expect(page.get_by_label("Input layouts")).to_have_value("image = NHWC")
    expect(page.get_by_text("Choose a model first.")).to_be_hidden()
    expect(page.locator("#run")).to_be_enabled()
    # The server has the model, so that the savings can be worked out.
    page.click("#explain")
    expect(page.get_by_role("table", name="Cost of each requirement")).to_be_visible()
    with page.expect_download() as model:
        page.click("#get-model")
    assert model.value.suggested_filename == ("example.legal.json" if is_json else "my net.legal.onnx")


def _samples(*extents: tuple[int, ...]) -> list[FilePayload]:
    """A file of NumPy with the input of the model for each of these shapes."""
    files: list[FilePayload] = []
    for n, shape in enumerate(extents):
        written = io.BytesIO()
        np.savez(written, **{onnx_model().graph.input[0].name: np.random.default_rng(n).random(shape, np.float32)})
        files.append({"name": f"{n}.npz", "mimeType": "", "buffer": written.getvalue()})
    return files


def test_a_comparison_on_inputs_of_the_user(page: Page) -> None:
    """For a model that is packed, too. The next model has other inputs."""
    shape = tuple(dim.dim_value for dim in onnx_model().graph.input[0].type.tensor_type.shape.dim)
    drop(page, "net.onnx.gz", gzip.compress(onnx_bytes()))
    drawn(page)
    page.locator("summary", has_text="Options").click()
    page.set_input_files("#samples", _samples(shape, shape))
    page.click("#run:not([disabled])")
    expect(page.locator("#summary")).to_contain_text("1 of 1 output equal to the source's on 2 samples of the inputs.")
    page.select_option("#backend", "nchw")
    page.click("#run:not([disabled])")
    expect(page.locator("#result")).to_be_visible()
    page.go_back()
    expect(page.locator("#samples")).to_have_value("")
    expect(page.locator("#result")).to_be_visible()
    drawn(page)
    page.set_input_files("#samples", _samples((*shape[:-1], shape[-1] + 1)))
    page.click("#run:not([disabled])")
    expect(page.locator("#problem")).to_contain_text("inputs")
    drop(page, "example.json", json.dumps(GRAPH).encode())
    drawn(page)
    expect(page.locator("#samples")).to_have_value("")
    page.set_input_files("#samples", _samples(shape))
    page.click("#run:not([disabled])")
    expect(page.locator("#problem")).to_contain_text("files of inputs go with an ONNX model")


def test_the_way_back_leads_to_each_result(page: Page) -> None:
    legalize(page)
    first = page.url
    page.select_option("#backend", "nchw")
    page.click("#run")
    expect(page.locator("#result")).to_be_visible()
    second = page.url
    drop(page, "net.onnx", onnx_bytes())
    drawn(page)
    # A model that is only drawn has no result. The form keeps its values until the page is read again.
    expect(page.locator("#result")).to_be_hidden()
    page.go_back()
    expect(page.locator("#result")).to_be_visible()
    expect(page.locator("#backend")).to_have_value("nchw")
    assert page.url == second
    page.go_back()
    expect(page.locator(".headline")).to_have_text("2 transposes of 2 removed, 0 left.")
    assert page.url == first
    page.go_forward()
    expect(page.locator("#backend")).to_have_value("nchw")


def test_paper_has_the_whole_tables_and_no_controls(page: Page) -> None:
    legalize(page)
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    for controls in ("#run", "#get-model", "#fit"):
        expect(page.locator(controls)).to_be_hidden()
    scrolled = "found => found.filter(each => each.scrollHeight > each.clientHeight).length"
    assert page.locator(".scroll").evaluate_all(scrolled) == 0


def test_a_job_whose_model_is_gone_says_why_there_are_no_savings(page: Page) -> None:
    page.route("**/v1/jobs/*/source", lambda route: route.fulfill(status=409, json={"title": "No result"}))
    page.click("#example")
    page.select_option("#backend", "nchw")
    page.click("#run:not([disabled])")
    expect(page.locator("#explain")).to_be_visible()
    page.reload()
    expect(page.get_by_text("the server no longer has the model")).to_be_visible()
    expect(page.get_by_text("Choose a model first.")).to_be_visible()


def test_a_file_that_was_not_sent_is_named_after_a_reload(page: Page) -> None:
    drop(page, "net.onnx", onnx_bytes())
    drawn(page)
    page.reload()
    expect(page.locator("#run-hint")).to_have_text("The page was loaded again: choose net.onnx once more.")


def test_the_details_of_long_names_stay_in_their_panel(page: Page) -> None:
    model = onnx.load_from_string(onnx_bytes())
    longest = "/model/" + "attention_of_some_block/" * 8
    for node in [*model.graph.node, *(node for function in model.functions for node in function.node)]:
        node.name = f"{longest}{node.name}"
    legalize(page, content=model.SerializeToString())
    page.locator("#tables").get_by_role("button", name="Conv").first.click()
    expect(page.locator("#details h3").first).to_contain_text("Conv")
    assert page.evaluate("details.scrollWidth <= details.clientWidth")
    cost, panel = page.locator("#details td.number").first.bounding_box(), page.locator("#details").bounding_box()
    assert cost is not None
    assert panel is not None
    assert cost["x"] + cost["width"] <= panel["x"] + panel["width"]


def test_long_names_of_inputs_and_metadata_can_be_read(page: Page) -> None:
    model = onnx.load_from_string(onnx_bytes())
    longest = "serving/" + "block_of_some_network/" * 400
    model.metadata_props.add(key=longest, value="value of the metadata")
    name, model.graph.input[0].name = model.graph.input[0].name, f"{longest}end"
    for node in model.graph.node:
        node.input[:] = [f"{longest}end" if each == name else each for each in node.input]
    legalize(page, content=model.SerializeToString())
    assert page.evaluate("details.scrollWidth <= details.clientWidth")
    value = page.locator("#details dd", has_text="value of the metadata").bounding_box()
    assert value is not None
    assert value["width"] > 100
    with page.expect_download() as started:
        page.click("#get-svg")
    texts = [
        each.text or "" for each in ElementTree.parse(started.value.path()).iter("{http://www.w3.org/2000/svg}text")
    ]
    (title,) = [text for text in texts if "…" in text]
    assert title.startswith("serving/")
    assert title.endswith("end")
    assert len(title) < 80
    # It is found by all of its name.
    page.fill("#search", longest[100:200])
    expect(page.locator("#matches")).not_to_have_text("")


def test_a_double_click_sends_once_and_another_file_clears_the_answer(page: Page) -> None:
    sent: list[Request] = []
    page.on("request", lambda request: sent.append(request) if "/v1/jobs?" in request.url else None)
    drop(page, "net.onnx", onnx_bytes())
    drawn(page)
    page.dblclick("#run:not([disabled])")
    expect(page.locator("#get-model")).to_be_visible()
    assert len(sent) == 1
    drop(page, "other.json", json.dumps(GRAPH).encode())
    expect(page.locator("#result")).to_be_hidden()
    expect(page.locator("#downloads a")).to_have_count(0)
    expect(page.locator("#drop-text")).to_contain_text("other.json")
    assert "job=" not in page.url


def test_the_options_are_those_of_the_schemas_and_go_with_the_job(page: Page) -> None:
    drop(page, "net.onnx", onnx_bytes())
    drawn(page)
    page.select_option("#backend", "tpu")
    page.get_by_label("Max batch").fill("16")
    page.locator("summary", has_text="Options").click()
    page.get_by_label("Objective").select_option("transposes")
    page.get_by_label("Input layouts").fill("image = any")
    with page.expect_request("**/v1/jobs?*") as request:
        page.click("#run")
    url = httpx.URL(request.value.url)
    assert dict(url.params) == {
        "kind": "legalize",
        "name": "net.onnx",
        "backend": "tpu",
        "backend_option": "max_batch=16",
        "objective": "transposes",
        "input_layout": "image=any",
    }
    expect(page.locator("#result")).to_be_visible()


def test_a_link_to_a_job_that_verifies_shows_the_steps_that_it_has(
    page: Page, server: Server, client: httpx.Client
) -> None:
    job = submit_loop(client)
    page.goto(f"{server.address}/?job={job}")
    expect(page.locator("#stages li")).to_have_text(["wait for a worker", "read the model", "verify the result"])
    page.click("#cancel")
    expect(page.locator("#cancelled")).to_be_visible()


def test_a_job_can_be_cancelled(page: Page, client: httpx.Client) -> None:
    drop(page, "loop.json", json.dumps(endless_loop()).encode())
    drawn(page)
    page.locator("summary", has_text="Options").click()
    page.get_by_label("Check").check()
    page.click("#run")
    page.wait_for_url("**/?job=*")
    job = page.evaluate("new URLSearchParams(location.search).get('job')")
    expect(page.locator("#stages li[aria-current=step]")).to_have_text("verify the result")
    expect(drawn(page)).to_have_attribute("aria-label", "The model: 5 nodes, 0 changes")
    page.click("#cancel")
    expect(page.locator("#run")).to_be_enabled()
    expect(page.locator("#result")).to_be_hidden()
    expect(drawn(page)).to_be_visible()
    for _ in range(100):
        state = client.get(f"/v1/jobs/{job}").json()["state"]
        if state == "cancelled":
            break
    assert state == "cancelled"
    # A reload shows the same, and the job can be run again.
    for _ in range(2):
        expect(page.locator("#cancelled")).to_contain_text("Cancelled.")
        expect(page.locator("#drop-text")).to_contain_text("loop.json")
        expect(page.get_by_label("Check")).to_be_checked()
        assert f"?job={job}" in page.url
        page.reload()
    page.click("#again")
    expect(page.locator("#cancelled")).to_be_hidden()
    expect(page.locator("#stages li[aria-current=step]")).to_have_text("verify the result")
    assert f"?job={job}" not in page.url
    # The page has the server's answer, so that no endless job is left behind.
    page.click("#cancel")
    expect(page.locator("#cancelled")).to_contain_text("Cancelled.")


def test_a_server_that_is_away_for_a_time_loses_no_job(page: Page) -> None:
    is_away = True
    page.route("**/v1/jobs/*", lambda route: route.abort() if is_away else route.continue_())
    drop(page, "net.onnx", onnx_bytes())
    drawn(page)
    page.click("#run")
    expect(page.locator("#solution")).to_have_text("The server does not answer. Trying again; it keeps the job.")
    is_away = False
    expect(page.locator("#result")).to_be_visible()


def test_outputs_that_were_not_compared_are_not_called_equal(page: Page) -> None:
    # No runtime has this operator.
    unknown = {"name": "foo", "op": "Foo", "domain": "com.acme", "inputs": ["features"], "outputs": ["y"]}
    graph = {**GRAPH, "nodes": [*GRAPH["nodes"], unknown], "outputs": [{**GRAPH["outputs"][0], "name": "y"}]}
    drop(page, "foo.json", json.dumps({**graph, "opsets": {"com.acme": 1}}).encode())
    drawn(page)
    page.locator("summary", has_text="Options").click()
    page.get_by_label("Check").check()
    page.click("#run")
    expect(page.locator("#summary")).to_contain_text("1 output not run, and computed as in the source")
    expect(page.locator("#summary")).not_to_contain_text("equal to the source's")


def test_an_onnx_model_with_the_name_of_graph_json_is_read_as_what_it_is(page: Page) -> None:
    drop(page, "misnamed.json", onnx_bytes())
    expect(drawn(page)).to_have_attribute("aria-label", "The model: 6 nodes, 0 changes")
    drop(page, "text.json", b"no model")
    expect(page.locator("#problem")).to_contain_text("text.json is not JSON")


def test_a_problem_says_where_and_what_to_do(page: Page) -> None:
    drop(page, "broken.onnx", b"this is no model")
    expect(page.locator("#problem")).to_contain_text("not an ONNX model")
    expect(page.locator("#run")).to_be_disabled()
    expect(page.locator("#graph")).to_be_hidden()
    # The box shows no model that cannot be legalized.
    expect(page.locator("#problem")).to_contain_text("broken.onnx")
    expect(page.locator("#drop-text")).to_contain_text("Drop a model anywhere on this page")
    drop(page, "broken.json", b"{")
    expect(page.locator("#problem")).to_contain_text("broken.json is not JSON")
    drop(page, "broken.onnx.gz", gzip.compress(onnx_bytes())[:-20])
    expect(page.locator("#problem")).to_contain_text("broken.onnx.gz cannot be unpacked")
    expect(page.locator("#problem")).to_contain_text("the file may be cut off")


def test_a_model_packed_with_gzip_is_unpacked(page: Page) -> None:
    drop(page, "net.onnx.gz", gzip.compress(onnx_bytes()))
    expect(drawn(page)).to_have_attribute("aria-label", "The model: 6 nodes, 0 changes")
    expect(page.locator("#drop-text strong")).to_have_text("net.onnx")
    # There are no changes to go to.
    expect(page.locator("#next-change")).to_be_hidden()


def test_a_model_above_the_limit_of_the_server_is_not_sent(page: Page) -> None:
    sent: list[Request] = []
    page.on("request", lambda request: sent.append(request) if "/v1/graph" in request.url else None)
    drop(page, "large.onnx", bytes(MAX_BODY + 1))
    expect(page.locator("#problem")).to_contain_text("large.onnx was not sent")
    expect(page.locator("#problem")).to_contain_text("at most 1.05 MB")
    assert sent == []


def test_a_request_in_json_is_taken_with_its_backend_and_options(page: Page) -> None:
    request = {"graph": GRAPH, "backend": "tpu", "options": {"dims": {"n": 4}, "backend_options": {"max_batch": 16}}}
    drop(page, "request.json", json.dumps(request).encode())
    drawn(page)
    expect(page.locator("#drop-text")).to_contain_text("the graph of a request; its backend and options are in step 2")
    expect(page.locator("#backend")).to_have_value("tpu")
    expect(page.get_by_label("Dims")).to_have_value("n = 4")
    expect(page.get_by_label("Max batch")).to_have_value("16")


@pytest.mark.parametrize("page", [{"viewport": {"width": 1100, "height": 700}}], indirect=True)
def test_what_was_dropped_is_told_inside_its_box(page: Page) -> None:
    table = {"name": "own", "rule": [{"op": "Relu", "inputs": ["*"], "results": ["*"]}]}
    drop(page, "request.json", json.dumps({"graph": GRAPH, "backend": table}).encode())
    drawn(page)
    expect(page.locator("#drop-text")).to_contain_text("the graph of a request; its backend is in step 2")
    box = page.locator("#drop")
    assert box.evaluate("box => box.scrollWidth <= box.clientWidth")


def test_a_value_that_all_nodes_read_is_drawn_once(page: Page) -> None:
    """Its lines share their way: drawn for each reader, they took half a second a frame in a model with 140 of them."""
    names = ["x", *(f"v{index}" for index in range(300))]
    nodes = [{"op": "Add", "inputs": [before, "early"], "outputs": [name]} for before, name in pairwise(names)]
    inputs = [{"name": name, "dtype": "float32", "shape": [4]} for name in ("x", "early")]
    graph = {"opset": 20, "inputs": inputs, "outputs": [{**inputs[0], "name": names[-1]}], "nodes": nodes}
    drop(page, "early.json", json.dumps(graph).encode())
    drawn(page)
    points = page.evaluate(
        """async () => {
            let points = 0;
            const {prototype} = CanvasRenderingContext2D;
            for (const name of ["lineTo", "bezierCurveTo"]) {
                const draw = prototype[name];
                prototype[name] = function (...to) { points += 1; return draw.apply(this, to); };
            }
            const canvas = document.querySelector("canvas");
            canvas.dispatchEvent(new WheelEvent("wheel", {deltaY: 40, bubbles: true, cancelable: true}));
            for (let frame = 0; frame < 2; frame++) await new Promise(requestAnimationFrame);
            return points;
        }"""
    )
    assert 0 < points < 150
