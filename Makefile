# Bottles re-execute carboy in an empty root directory, where no dynamic loader
# is: everything that starts one is built without cgo.
export CGO_ENABLED = 0

GO ?= go
DIST ?= dist

.PHONY: build macos check lint test demo bench house man completions clean

build:
	$(GO) build -trimpath -o $(DIST)/carboy ./cmd/carboy

# carboy for a Mac with Apple's processor: its own program, the Linux one that runs in its
# machine, and that one's digest.
macos:
	GOOS=linux GOARCH=arm64 $(GO) build -trimpath -o $(DIST)/macos/carboy-linux-arm64 ./cmd/carboy
	cd $(DIST)/macos && sha256sum carboy-linux-arm64 >carboy-linux-arm64.sha256
	GOOS=darwin GOARCH=arm64 $(GO) build -trimpath -ldflags "-X github.com/carboy/carboy/internal/macos.digestARM64=$$(cut -c1-64 $(DIST)/macos/carboy-linux-arm64.sha256)" -o $(DIST)/macos/carboy ./cmd/carboy

# The first of three tiers, for each change; .ci/run and .ci/full are the others. It
# starts no bottles: the packages that it leaves out are printed. Half of the tests' time
# is small files, which memory holds if there is room.
check: export TMPDIR := $(shell [ -w /dev/shm ] && df -Pk /dev/shm | awk 'NR == 2 && $$4 > 2000000 {print "/dev/shm"}')
check: lint
	@echo 'not tested here, since they start bottles:' && .ci/units -not
	$(GO) test -short -vet=off -p $$((2 * $$(nproc))) $$(.ci/units)

lint:
	@test -z "$$(gofmt -l . | tee /dev/stderr)"
	GOOS=darwin GOARCH=arm64 $(GO) build -o /dev/null ./cmd/carboy
	$(GO) -C .ci/lint build -o $(abspath $(DIST))/lint .
	$(DIST)/lint ./...

test:
	$(GO) test ./...

demo:
	$(GO) run ./cmd/carboy demo

bench:
	$(GO) run ./internal/bench
	$(GO) run ./internal/bench -gateway

# How tidy the source is, by numbers that have limits.
house:
	$(GO) run ./internal/tools/house -v

man: build
	$(DIST)/carboy man $(DIST)/man/man1

completions: build
	mkdir -p $(DIST)/completions
	$(DIST)/carboy completion bash >$(DIST)/completions/carboy.bash
	$(DIST)/carboy completion zsh >$(DIST)/completions/_carboy
	$(DIST)/carboy completion fish >$(DIST)/completions/carboy.fish

clean:
	rm -rf $(DIST)
