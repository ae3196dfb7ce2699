"""What is there, and what it is worth."""

from . import price


class Store:
    def __init__(self):
        self.goods = {}

    def add(self, name, count, cents):
        if count < 1:
            raise ValueError("nothing to add")
        had, _ = self.goods.get(name, (0, 0))
        self.goods[name] = (had + count, cents)

    def take(self, name, count):
        had, cents = self.goods.get(name, (0, 0))
        if had < count:
            raise LookupError("there are %d of %s" % (had, name))
        self.goods[name] = (had - count, cents)

    def worth(self):
        total = 0
        for count, cents in self.goods.values():
            total += count * cents
        return total


def load(path):
    store = Store()
    with open(path) as f:
        for line in f:
            name, count, text = line.strip().split(",")
            store.add(name, int(count), price.parse(text))
    return store
