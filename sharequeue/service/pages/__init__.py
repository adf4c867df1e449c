"""HTML pages: the groups, a group with its leases, and its dead letters.

They are rendered on the server, without a script and without an address outside the service, and are read-only. Read
`requests` (the caller's rights and the errors of a page), `layout` (the frame of each page), then the pages:
`overview_page`, `group_page`, `letters_page`, `report_page`, `sign_in_page`; and `data_docs_page`, for the files that
Great Expectations has written. Figures are read and shown by `sharequeue.reports`.
"""
