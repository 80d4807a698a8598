#!/usr/bin/env bash
# usage: docs/publish.sh VERSION URL   puts docs/_build/html into the branch gh-pages as the folder VERSION
set -euo pipefail
version=$1 url=$2
site=$(cd "$(dirname "$0")/_build/html" && pwd)
pages=$(mktemp -d)/pages
git worktree add -q --detach "$pages"
cd "$pages"
if git fetch -q origin gh-pages 2>/dev/null; then
  git checkout -q --detach FETCH_HEAD
else  # the first time
  git checkout -q --orphan gh-pages
  git rm -rfq .
fi
rm -rf "${version:?}"
cp -r "$site" "$version"
touch .nojekyll
python3 - "$url" > versions.json <<'PYTHON'
import json, pathlib, sys
names = sorted((p.parent.name for p in pathlib.Path().glob("*/index.html")), reverse=True)
print(json.dumps([{"version": name, "url": f"{sys.argv[1]}/{name}/"} for name in names]))
PYTHON
echo '<meta http-equiv="refresh" content="0; url=main/">' > index.html
git add --all
git -c user.name=docs -c user.email=docs@localhost commit -q -m "Documentation of $version" || exit 0
git push -q origin HEAD:refs/heads/gh-pages
