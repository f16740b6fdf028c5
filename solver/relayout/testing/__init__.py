"""For the tests of others: the fixture of a CI that checks its models."""
