"""From rows to tables and figures. Never imports torch.

`report.write_report` writes everything. Its pieces, for use from Python:

    frames.read_results    all numbers of a results folder as one pandas frame
    tables.read_tables     these numbers grouped by settings, averaged over seeds and ranked
    figure_files.draw      the figures of one of these tables as matplotlib figures
"""
