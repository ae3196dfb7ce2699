# What .ci/run and .ci/full are made of. Sourced by both, as root.
# shellcheck shell=bash
set -Eeuo pipefail

readonly govulncheck=golang.org/x/vuln/cmd/govulncheck@v1.9.0
readonly user=carboy-ci
# For go test: tests of bottles wait, too; more at once take longer. Tests make their own
# files where TMPDIR says, not beside their programs.
spread=("-p=$((2 * $(nproc)))" '-exec=env -u GOTMPDIR')
readonly spread

# The packages that promises rest on: the short tests reach 80 % of their statements, and of
# the new ones; all tests nine in ten.
readonly covered=internal/audit,internal/bottle,internal/change,internal/credential,internal/gate,internal/gateway,internal/gitgate,internal/hostexec,internal/policy,internal/scan,internal/secret,internal/ship,internal/wire

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly here
began=$SECONDS
step_began=$SECONDS
step_cpu=0
step_name=
steps=

fail() {
    printf '\n%s%s: FAILED in "%s": %s\n' "$steps" "$0" "$step_name" "$*" >&2
    exit 1
}
trap 'fail "line ${BASH_LINENO[0]}"' ERR

# fault fails the run at once, or, where ending is "late", notes it and goes on: the run
# fails at its end, with all that was found.
ending=at-once
fault() {
    [ "$ending" = late ] || fail "$@"
    printf '\nFAULT in "%s": %s\n' "$step_name" "$*" >&2
    printf '%s: %s\n' "$step_name" "$*" >>"$work/log/faults" # a file: a step may be in a pipe
}

# step NAME begins a step, and says how long the one before took, in time and in the time of
# the machine's processors: bottles are no children of the shell.
step() {
    local cpu took
    cpu=$(awk '/^cpu / { print int(($2 + $3 + $4) / 100) }' /proc/stat)
    if [ -n "$step_name" ]; then
        took=$(printf -- '--- %s: %ds (processors: %ds)' "$step_name" $((SECONDS - step_began)) $((cpu - step_cpu)))
        steps+=$took$'\n'
        echo "$took"
    fi
    step_name=$1 step_began=$SECONDS step_cpu=$cpu
    if [ -n "$1" ]; then printf '\n=== %s\n' "$1"; fi
}

# prepare installs what the tests use, makes the user, and copies the source to where
# that user builds it. It sets work, common and agents, for as_user and as_root. Where work
# is set before, that directory is kept when the run ends, and an earlier run's is used.
prepare() {
    [ "$(id -u)" = 0 ] || fail 'needs root: it installs packages and tests both as root and as a user'
    command -v go >/dev/null || PATH=$PATH:/usr/local/go/bin
    command -v go >/dev/null || fail 'needs Go: https://go.dev/dl'
    local want=(bash bubblewrap ca-certificates curl dbus-daemon debian-archive-keyring docker.io e2fsprogs gcc git iproute2 libc-bin libc6-dev make mmdebstrap openssh-client openssh-server openssl procps python3 python3-aiohttp python3-pytest python3-requests runc tmux util-linux wget)
    # Receipts are looked at in a browser; Ubuntu has none in a package.
    command -v chromium >/dev/null || command -v google-chrome >/dev/null || want+=(chromium)
    local missing=() p
    for p in "${want[@]}"; do
        dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q '^install ok installed$' || missing+=("$p")
    done
    if [ ${#missing[@]} -gt 0 ]; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -q
        apt-get install -q -y --no-install-recommends "${missing[@]}"
    fi
    id "$user" >/dev/null 2>&1 || useradd --create-home --shell /bin/bash "$user"
    local restrict=/proc/sys/kernel/apparmor_restrict_unprivileged_userns
    if [ -e $restrict ] && [ "$(cat $restrict)" = 1 ]; then
        echo 'AppArmor reserves user namespaces here; allowing them for this machine until it boots again'
        echo 0 >$restrict
    fi

    # One directory for everything, so that root and the user share what is built.
    if [ -z "${work-}" ]; then
        work=$(mktemp -d /var/tmp/carboy-ci.XXXXXX)
        trap 'umount -l "$work/memory" || true; rm -rf --one-file-system "$work"' EXIT
    else
        trap 'umount -l "$work/memory" || true' EXIT
    fi
    mkdir -p "$work"/{src,mod,cache,bin,log,memory}
    chmod 755 "$work"
    # For tests of which others run on a disk, and for the tests' programs: from large pages
    # their processes start in four fifths of the time.
    mount -t tmpfs -o mode=1777,huge=within_size tmpfs "$work/memory" 2>/dev/null || mount -t tmpfs -o mode=1777 tmpfs "$work/memory"
    tar -C "$here" --exclude=./.git --exclude=./dist -cf - . | tar -C "$work/src" -xf -
    chown -R "$user": "$work"
    cd "$work/src"

    goroot=$(go env GOROOT)
    # Vet is a step of its own: for each way to build, go test would vet all dependencies anew.
    common=(PATH="$goroot/bin:$work/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" LANG=C.UTF-8
        GOMODCACHE="$work/mod" GOCACHE="$work/cache" GOBIN="$work/bin" GOTOOLCHAIN=local
        GOTMPDIR="$work/memory" GOFLAGS='-buildvcs=false -modcacherw -mod=readonly -vet=off -ldflags=-w' GOPROXY="$(go env GOPROXY)" GOSUMDB="$(go env GOSUMDB)" CARBOY_CI=1)
    agents= # where real agents are, when they could be installed
    go version
    nproc
}

# as_user and as_root run a command with an environment of our own making.
as_user() { runuser -u "$user" -- env -i "${common[@]}" CARBOY_TEST_AGENTS="$agents" HOME="/home/$user" USER="$user" "$@"; }
# Root's programs do not lie in a directory of the user's: carboy would not install one.
as_root() { env -i "${common[@]}" GOTMPDIR= CARBOY_TEST_AGENTS="$agents" HOME=/root USER=root "$@"; }

# install_parts AGENT... installs what no distribution has in a package, and these agents.
# Without one they are the two that need least; docs/agents.md has all.
install_parts() {
    [ $# -gt 0 ] || set -- pi-coding-agent claude-code
    local registry plugin=/opt/compose/docker-compose
    registry=$(npm config get registry 2>/dev/null || true)
    if [ -n "$registry" ] && curl -fsS --max-time 15 -o /dev/null "$registry"; then
        # npm's own list of whom to trust is not this machine's.
        as_user npm_config_registry="$registry" npm_config_cafile=/etc/ssl/certs/ca-certificates.crt internal/agenttest/install.sh "$work/agents" "$@"
        agents=$work/agents
        # GitHub's descriptions of its API and of its webhooks.
        as_user mkdir -p "$work/described"
        as_user npm_config_registry="$registry" npm_config_cafile=/etc/ssl/certs/ca-certificates.crt npm pack --silent --pack-destination "$work/described" @octokit/openapi@23.0.2 @octokit/webhooks-schemas@7.6.1
        as_user tar -C "$work/described" -xzf "$work/described/octokit-openapi-23.0.2.tgz" package/generated/api.github.com.json
        as_user tar -C "$work/described" -xzf "$work/described/octokit-webhooks-schemas-7.6.1.tgz" package/schema.json
        common+=(CARBOY_TEST_GITHUB_API="$work/described/package/generated/api.github.com.json" CARBOY_TEST_GITHUB_HOOKS="$work/described/package/schema.json")
    else
        echo 'npm, or its registry, cannot be reached from here, so NO real agent was run in a bottle,'
        echo "and the forges' clients were NOT held to GitHub's own descriptions"
    fi
    # carboy looks for BuildKit's client where a system's programs are.
    as_user CGO_ENABLED=0 go -C .ci/buildkit install -ldflags='-s -w' tool
    install -m 0755 "$work/bin/buildctl" /usr/local/bin/
    # Compose is built as carboy is: a third of its packages are then built already.
    if [ ! -x $plugin ]; then
        as_user CGO_ENABLED=0 go -C .ci/compose build -ldflags="-s -w -X github.com/docker/compose/v5/internal.Version=$(go -C .ci/compose list -m -f "{{.Version}}" github.com/docker/compose/v5)" -o "$work/bin/docker-compose" github.com/docker/compose/v5/cmd
        install -D -m 0755 "$work/bin/docker-compose" $plugin
    fi
    as_user CGO_ENABLED=0 go build -o "$work/bin/" ./internal/tools/report ./internal/tools/diffcover ./internal/bench
}

# install_programs installs the programs that TestPrograms and TestServices try, from Debian and, where
# install_parts reached it, npm.
install_programs() {
    local p want=(cargo clangd composer default-jdk-headless docker.io gradle libmaven-compiler-plugin-java libmaven-jar-plugin-java libmaven-resources-plugin-java librust-itoa-dev libsurefire-java maven openssh-client php-cli php-symfony-console postgresql python3-pylsp python3-venv redis-server ruby ruby-bundler ruby-rack sudo systemd tmux vim)
    for p in chromium firefox-esr; do # Ubuntu has neither in a package
        if apt-cache show "$p" >/dev/null 2>&1; then want+=("$p"); fi
    done
    command -v npm >/dev/null || want+=(nodejs npm) # npm's own packages conflict with Debian's
    apt-get install -q -y --no-install-recommends "${want[@]}"
    [ -z "$agents" ] || as_user npm_config_registry="$(npm config get registry)" npm_config_cafile=/etc/ssl/certs/ca-certificates.crt internal/agenttest/install.sh "$agents" playwright-core puppeteer-core typescript-language-server pyright
}

# install_microvm installs QEMU, and gets a kernel for micro-VMs out of its package: installed,
# it would be this machine's own.
install_microvm() {
    local package
    apt-get install -q -y --no-install-recommends qemu-system-x86
    package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: //p' | head -n 1)
    [ -n "$package" ] || fail 'apt has no linux-image-cloud-amd64: the tests of micro-VMs need a kernel with virtio drivers'
    mkdir -p "$work/kernel"
    if ! ls "$work"/kernel/boot/vmlinuz-* >/dev/null 2>&1; then
        (cd "$work/kernel" && apt-get download -q "$package" && dpkg-deb -x ./*.deb . && rm ./*.deb)
    fi
    common+=(CARBOY_MICROVM_KERNEL="$(ls "$work"/kernel/boot/vmlinuz-*)")
}

# install_gitea begins to build a Gitea server for tests, unless this machine has it. That
# takes minutes, so it goes on beside the next steps, with what these leave of the
# processors. await_gitea waits for it, and tells tests where it is.
install_gitea() {
    gitea=/opt/gitea/$(sha256sum <.ci/gitea/go.sum | cut -c-16)
    gitea_build=
    if [ ! -x "$gitea/gitea" ]; then
        build_gitea >"$work/log/gitea" 2>&1 &
        gitea_build=$!
    fi
}

build_gitea() {
    as_user nice -n 19 internal/forge/giteatest/install.sh "$work/gitea"
    rm -rf "$gitea"
    mkdir -p "$gitea"
    cp -r "$work/gitea/static" "$gitea/"
    install -m 0755 "$work/gitea/gitea" "$gitea/gitea"
}

await_gitea() {
    if [ -n "$gitea_build" ]; then
        wait "$gitea_build" || { cat "$work/log/gitea"; fail 'Gitea was not built'; }
    fi
    common+=(CARBOY_TEST_GITEA="$gitea/gitea")
}

# tested NAME COMMAND... runs tests, keeps their events as NAME.json, and prints go's own
# lines. A test that fails is a fault, though it might pass at a second try: it is mended,
# not tried again.
tested() {
    local log=$work/log/$1.json status=0
    shift
    "$@" >"$log" || status=$?
    "$work/bin/report" "$log" || status=1
    [ $status = 0 ] || fault "tests: $*"
}

# reached PERCENT PROFILE... fails unless that part of the statements was reached in the
# packages that promises rest on, and of the new statements.
reached() {
    cat "${@:2}" >"$work/log/cover"
    (cd "$here" && "$work/bin/diffcover" -floor "$1" -new "$1" -profile "$work/log/cover" "$covered") || fault 'tests reach too little'
}

# fuzz TIME [PACKAGE...] fuzzes each target of these packages for that long, or of all.
fuzz() {
    local time=$1 sealed pkg dir built target guided builder
    # With the embedded kernel linked in, a binary that is instrumented for fuzzing
    # does not link (some stack frames grow too large), so there it runs unguided.
    sealed=$(as_user .ci/units -not)
    shift
    [ $# -gt 0 ] || set -- ./...
    for pkg in $(as_user CGO_ENABLED=0 go list "$@"); do
        dir=.${pkg#github.com/carboy/carboy}
        if grep -qsE '^func Fuzz' "$dir"/*_test.go; then printf '%s %s\n' "$pkg" "$dir"; fi
    done >"$work/log/fuzzable"
    as_user mkdir -p "$work/bin/fuzz"
    # While one is fuzzed, the next is built.
    while read -r pkg dir; do
        guided=(-fuzz=.)
        if grep -qx "$pkg" <<<"$sealed"; then guided=(); fi
        as_user CGO_ENABLED=0 go test -c "${guided[@]}" -o "$work/bin/fuzz/next" "$pkg" || break
        mv "$work/bin/fuzz/next" "$work/bin/fuzz/${dir//\//_}"
    done <"$work/log/fuzzable" &
    builder=$!
    while read -r pkg dir <&3; do
        built=$work/bin/fuzz/${dir//\//_}
        while [ ! -e "$built" ]; do
            kill -0 $builder 2>/dev/null || [ -e "$built" ] || fail "$pkg does not build for fuzzing"
            sleep 0.2
        done
        for target in $(grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$dir"/*_test.go | sed 's/^func //'); do
            # Go calls it a failure when the time is over in the middle of a round;
            # one that found something says where it wrote the input.
            (cd "$dir" && as_user "$built" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$time" -test.fuzzminimizetime 2s -test.fuzzcachedir "$work/cache/fuzz/$pkg") </dev/null >"$work/log/fuzz" 2>&1 || {
                if grep -q 'Failing input' "$work/log/fuzz" || ! grep -qx ' *context deadline exceeded' "$work/log/fuzz"; then
                    cat "$work/log/fuzz"
                    fault "$target in $pkg"
                fi
            }
            printf '%-28s %s\n' "$target" "$(grep '^fuzz: elapsed' "$work/log/fuzz" | tail -n 1)"
        done
        rm "$built"
    done 3<"$work/log/fuzzable"
}

# soak TIME sees that the gateway does not grow. TestSoakFails sees that it can fail.
soak() {
    as_user "$work/bin/bench" -soak "$1" || fault 'the gateway grows'
}

nothing_left() {
    if pgrep -u "$user" -a; then fail 'processes of the tests are still there'; fi
}
