"""A module with its tests, run by unittest: passes, a failure, an error, a skip, mocks."""

import io
import unittest
from unittest import mock


def slug(text):
    return "-".join(text.lower().split())


class SlugTest(unittest.TestCase):
    def setUp(self):
        self.cases = {"Hello World": "hello-world", " a  b ": "a-b"}

    def test_cases(self):
        for text, expected in self.cases.items():
            with self.subTest(text):
                self.assertEqual(slug(text), expected)

    def test_refuses_numbers(self):
        with self.assertRaisesRegex(AttributeError, "lower"):
            slug(7)

    def test_fails_on_purpose(self):
        self.assertEqual(slug("A B"), "a_b")

    @unittest.skip("not yet")
    def test_later(self):
        raise AssertionError

    @unittest.expectedFailure
    def test_known(self):
        self.assertIn("x", slug("y"))

    def test_errors(self):
        raise KeyError("lost")

    def test_mock(self):
        sender = mock.Mock(return_value=3)
        self.assertEqual(sender("a", b=1), 3)
        sender.assert_called_once_with("a", b=1)
        with mock.patch("builtins.open", mock.mock_open(read_data="data")):
            self.assertEqual(open("nowhere").read(), "data")


class AsyncTest(unittest.IsolatedAsyncioTestCase):
    async def test_awaits(self):
        answer = mock.AsyncMock(return_value="ok")
        self.assertEqual(await answer(), "ok")


suite = unittest.TestSuite(
    unittest.defaultTestLoader.loadTestsFromTestCase(case) for case in (SlugTest, AsyncTest)
)
result = unittest.TextTestRunner(stream=io.StringIO(), verbosity=2).run(suite)
print(f"run {result.testsRun}, failed {len(result.failures)}, errors {len(result.errors)}, skipped {len(result.skipped)}")
print(f"expected to fail {len(result.expectedFailures)}, all well: {result.wasSuccessful()}")
for case, trace in result.failures + result.errors:
    print(case.id(), "|", trace.strip().splitlines()[-1])
print([line.strip() for line in result.failures[0][1].splitlines() if line.startswith(("-", "+", "?"))])
