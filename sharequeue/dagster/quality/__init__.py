"""Data quality: Great Expectations suites, and the bridge that makes each expectation an asset check."""
