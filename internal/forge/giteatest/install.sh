#!/bin/sh
# Builds a Gitea server for tests, which takes minutes and needs a C compiler:
#   internal/forge/giteatest/install.sh DIRECTORY
# Tests use it with CARBOY_TEST_GITEA=DIRECTORY/gitea. Its pages are not built in. Since it
# refuses to run as root, root's tests run it as nobody, who must be able to read DIRECTORY.
set -eu
dir=${1:?usage: install.sh DIRECTORY}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
cd "$(dirname "$0")/../../../.ci/gitea"
version=$(go list -m -f '{{.Version}}' code.gitea.io/gitea)
# SQLite is most of the C, and need not be fast.
CGO_ENABLED=1 CGO_CFLAGS=-O1 go build -tags 'sqlite sqlite_unlock_notify' -ldflags="-s -w -X main.Version=${version#v}" -o "$dir/gitea.new" code.gitea.io/gitea
src=$(go list -m -f '{{.Dir}}' code.gitea.io/gitea)
rm -rf "$dir/static"
mkdir -p "$dir/static/public/assets/.vite"
cp -r "$src/templates" "$src/options" "$dir/static/"
chmod -R u+w,a+rX "$dir/static" # the module cache may be read only
echo '{}' >"$dir/static/public/assets/.vite/manifest.json"
mv "$dir/gitea.new" "$dir/gitea"
