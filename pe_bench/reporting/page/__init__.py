"""index.html, a single file with tables, charts, and the origin of every number.

`write.write_page` writes it. vendor/ has Observable Plot and D3, which draw its charts.
"""
