import unittest

from stock import store


class StoreTest(unittest.TestCase):
    def test_add(self):
        s = store.Store()
        s.add("nut", 2, 50)
        self.assertEqual(s.worth(), 100)

    def test_take(self):
        s = store.Store()
        s.add("nut", 2, 50)
        s.take("nut", 1)
        self.assertEqual(s.worth(), 50)

    def test_too_many(self):
        with self.assertRaises(LookupError):
            store.Store().take("nut", 1)

    def test_load(self):
        self.assertEqual(store.load("data/goods.csv").worth(), 1040)
