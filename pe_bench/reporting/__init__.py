"""From rows to tables and pictures. Never imports torch.

`report.write_report` writes everything. Its pieces, for use from Python:

    frames.read_results    all numbers of a results folder as one pandas frame
    tables.read_tables     the same grouped by settings, averaged over seeds, ranked
    pictures.draw          the pictures of such a table as matplotlib figures
"""
