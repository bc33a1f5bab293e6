"""`llpauc sign`: sign a run folder, or check its signature."""

from __future__ import annotations

from llpauc.cli.console import log, print_json


def sign(
    run: str, *, key_file: str | None = None, verify: bool = False, json: bool = False
) -> None:
    """Sign a run folder with a secret key, so that `llpauc serve --require-signature` accepts it.

    Every file of the run is verified first. A run that is trained or updated again has no
    signature until it is signed again.

    Args:
        run: a run folder written by llpauc train
        key_file: file with the key, 16 to 1,024 characters (else LLPAUC_SIGNING_KEY)
        verify: check the signature and every file instead; exit code 2 if one is wrong
        json: print the result as JSON
    """
    from llpauc.storage import run_folder
    from llpauc.storage.signing import read_signing_key

    key = read_signing_key(key_file)
    if verify:
        run_folder.load(run, signing_key=key)
        log.info(f"{run} is complete and signed with this key")
    else:
        run_folder.sign(run, key)
        log.info(f"signed {run}")
    if json:
        print_json({"run": run, "verified" if verify else "signed": True})
