# The steps of .ci/run by name. They need uv on the PATH; `make check` is what CI runs and needs only python3 and pip.
.PHONY: check lint types imports quick test

check:
	bash .ci/run

lint:
	uv run --all-extras ruff check

types:
	uv run --all-extras mypy
	uv run --all-extras mypy --platform darwin
	uv run --all-extras mypy --platform win32 -p relayout -p relayout_backends

imports:
	uv run --all-extras lint-imports

# The tests for the inner loop; `make test` runs all of them.
quick:
	uv run --all-extras pytest -n 3 --dist worksteal -m "not slow"

test:
	uv run --all-extras pytest -n 3 --dist worksteal
