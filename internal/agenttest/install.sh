#!/bin/sh
# Installs programs from npm for the tests of this package, each in its own directory:
#   internal/agenttest/install.sh DIRECTORY [NAME...]     without NAME all agents; the rest by name only
# They are the versions that their vendors publish, about 1.4 GB for all.
set -eu
dir=${1:?usage: install.sh DIRECTORY [NAME...]}
shift
[ $# -gt 0 ] || set -- pi-coding-agent claude-code codex gemini-cli opencode-ai
for name; do
    case $name in
    pi-coding-agent) package=@mariozechner/pi-coding-agent@0.73.1 ;;
    claude-code) package=@anthropic-ai/claude-code@2.1.329 ;;
    codex) package=@openai/codex@0.169.0 ;;
    gemini-cli) package=@google/gemini-cli@0.61.0 ;;
    opencode-ai) package=opencode-ai@1.18.33 ;;
    bun) package=bun@1.4.5 ;;
    deno) package=deno@2.9.6 ;;
    playwright-core) package=playwright-core@1.65.1 ;;
    puppeteer-core) package=puppeteer-core@25.16.0 ;;
    typescript-language-server) package='typescript-language-server@4.4.1 typescript@5.9.3' ;;
    pyright) package=pyright@1.1.414 ;;
    *) echo "install.sh: no agent is called $name" >&2; exit 2 ;;
    esac
    mkdir -p "$dir/$name"
    npm install --prefix "$dir/$name" --no-save --no-audit --no-fund --loglevel=error $package
done
