"""Checks of a group's dead-letter topic: Great Expectations suites, in which each expectation is an asset check.

`reading` reads the topic in batches of letters, `judging` finds Postgres's record of each (`archived`), `comparison`
compares copies with their records, `reconciliation` finds missing and doubled letters, and `examination` does all of
it in one pass. `dead_letters` has the expectations, `findings` the data kept between runs.
"""
