#!/usr/bin/env bash
# Fetch the two scripts that the docs site draws diagrams with and searches with when it is opened from disk.
# Without npm the site has neither: diagrams stay text, and search needs `python -m http.server -d site`.
set -euo pipefail
mkdir -p docs/en/assets
cd docs/en/assets

fetch() { # name version path-in-package file
    [[ -s $4 ]] && return
    if npm pack --silent "$1@$2" >/dev/null 2>&1; then
        tar -xzOf "$1-$2.tgz" "package/$3" >"$4"
        rm "$1-$2.tgz"
    else
        echo "no npm here: the docs site goes without $1"
        : >"$4"
    fi
}
fetch mermaid 12.3.0 dist/mermaid.min.js mermaid.min.js
fetch iframe-worker 1.0.4 shim/index.js iframe-worker.js
