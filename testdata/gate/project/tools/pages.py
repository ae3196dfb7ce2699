"""Makes a page of the goods."""

import sys

sys.path.insert(0, ".")

from stock import store  # noqa: E402

with open("/tmp/page.txt", "w") as f:
    for name, (count, cents) in store.load("data/goods.csv").goods.items():
        f.write("%s %d %d\n" % (name, count, cents))
