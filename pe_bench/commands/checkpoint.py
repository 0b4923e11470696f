"""`pe-bench checkpoint`: a trained model as a folder of transformers."""

import argparse

from pe_bench.system.console import info


def main(args: argparse.Namespace) -> int:
    """Copy the model of a run and say how it is loaded."""
    from pe_bench.results.store import find_run
    from pe_bench.runs.trained_models import copy_kept

    copy_kept(find_run(args.run, args.results), args.folder, args.subset)
    code = (args.folder / "modeling_pe_bench.py").exists()
    trust = ", trust_remote_code=True" if code else ""
    info(f'AutoModelForCausalLM.from_pretrained("{args.folder}"{trust})')
    return 0
