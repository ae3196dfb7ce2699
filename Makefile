# Bottles re-execute carboy in an empty root directory, where no dynamic loader
# is: everything that starts one is built without cgo.
export CGO_ENABLED = 0

GO ?= go
DIST ?= dist

.PHONY: build test bench demo lint man completions clean

build:
	$(GO) build -trimpath -o $(DIST)/carboy ./cmd/carboy

test:
	$(GO) test ./...

demo:
	$(GO) run ./cmd/carboy demo

bench:
	$(GO) run ./internal/bench
	$(GO) run ./internal/bench -gateway

lint:
	@test -z "$$(gofmt -l . | tee /dev/stderr)"
	$(GO) vet ./...
	$(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...

man: build
	$(DIST)/carboy man $(DIST)/man/man1

completions: build
	mkdir -p $(DIST)/completions
	$(DIST)/carboy completion bash >$(DIST)/completions/carboy.bash
	$(DIST)/carboy completion zsh >$(DIST)/completions/_carboy
	$(DIST)/carboy completion fish >$(DIST)/completions/carboy.fish

clean:
	rm -rf $(DIST)
