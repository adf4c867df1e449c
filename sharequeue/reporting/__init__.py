"""How is a report on a share group shown? As a page that needs nothing else, and as pictures that are short enough to
stand in a line of metadata.

``page`` makes the page and ``drawing`` its pictures, ``small`` the short ones, ``files`` says where a page lies. The
figures are those of ``sharequeue.state.group_report``.
"""
