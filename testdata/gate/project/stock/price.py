"""Prices, in cents."""


def parse(text):
    whole, _, part = text.strip().partition(".")
    if not whole.isdigit() or (part and not part.isdigit()):
        raise ValueError("no price: " + text)
    return int(whole) * 100 + int((part + "00")[:2])


def show(cents):
    return "%d.%02d" % (cents // 100, cents % 100)
