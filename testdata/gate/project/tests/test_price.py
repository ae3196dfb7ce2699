import unittest

from stock import price


class PriceTest(unittest.TestCase):
    def test_whole(self):
        self.assertEqual(price.parse("12"), 1200)

    def test_part(self):
        self.assertEqual(price.parse("12.5"), 1250)

    def test_refused(self):
        with self.assertRaises(ValueError):
            price.parse("-1")

    def test_shown(self):
        self.assertEqual(price.show(1205), "12.05")
