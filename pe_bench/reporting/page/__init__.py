"""index.html, one file with everything: tables, charts, and how every number was made.

`write.write_page` writes it. Observable Plot and D3, which draw its charts, lie in vendor/.
"""
