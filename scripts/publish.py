"""Publishes a trained model on the Hub, with a card made from the record of its run:

    python scripts/publish.py RUN --repo-id ORG/NAME --dry-run     # assembles and verifies the folder, uploads nothing
    python scripts/publish.py RUN --repo-id ORG/NAME               # and uploads it: private, one commit, tag v1
    python scripts/publish.py RUN --repo-id ORG/NAME --license cc-by-4.0 --data-note "TEXT"     # of your own text

RUN is the folder of a finished run whose results.json has a score of the weights. The folder works without this package
(trust_remote_code), and is verified in clean processes. An upload that was cut short is finished by the same command.
"""

import argparse
import sys
from pathlib import Path

from huggingface_hub.utils import validate_repo_id

from vaswani.cards import Statement, known_and_said
from vaswani.publishing import assemble
from vaswani.run_config import UserError, exit_code
from vaswani.run_record import outdone, read_record
from vaswani.text_lines import read_lines
from vaswani.uploading import account, hub_errors, upload

CITATION = Path(__file__).parent.parent / "CITATION.cff"


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--repo-id", required=True, metavar="ORG/NAME", help="the model's name on the Hub")
    parser.add_argument("--weights", choices=["last", "averaged"], help="default: averaged, where the run has such")
    parser.add_argument("--tag", default="v1", help="of the commit; default: v1")
    parser.add_argument("--public", action="store_true", help="everybody may see it; default: private")
    parser.add_argument("--update", action="store_true", help="put it in the place of what the repository holds")
    parser.add_argument("--dry-run", action="store_true", help="stop before the upload")
    parser.add_argument("--output", type=Path, help="the folder to assemble; default: RUN/hub")
    parser.add_argument(
        "--license", metavar="ID", help="of the model, as the Hub names it; known for the paper's data and Multi30k"
    )
    parser.add_argument("--license-name", metavar="NAME", help="of a license 'other'")
    parser.add_argument("--license-link", metavar="URL", help="of a license 'other'")
    parser.add_argument(
        "--data-note", metavar="TEXT", help="what the training text is, where it is from, on what terms"
    )
    parser.add_argument("--sentences", type=Path, help="sentences of your own writing that the card shows, a line each")
    return parser.parse_args(argv)


def run(options: argparse.Namespace) -> None:
    with hub_errors():
        validate_repo_id(options.repo_id)
    if options.repo_id.count("/") != 1:
        raise UserError(f"--repo-id {options.repo_id!r} must be ORG/NAME, with the name of a user or an organisation")
    record = read_record(options.run, options.weights)
    said = Statement(
        options.repo_id, options.license, options.license_name, options.license_link, options.data_note, options.tag
    )
    known_and_said(record, said)
    if not options.dry_run:
        print(f"logged in as {account()}")
    print(f"weights: {record.weights['weights']}, {record.model}")
    if better := outdone(record):
        print(f"warning: {better}")
    given = [line for line in read_lines(options.sentences) if line.strip()] if options.sentences else []
    folder = assemble(record, said, options.output or options.run / "hub", CITATION, given)
    if options.dry_run:
        print(f"dry run: nothing was uploaded; look at {folder / 'README.md'}, then leave out --dry-run")
    else:
        upload(folder, options.repo_id, options.tag, public=options.public, update=options.update)


def main(argv: list[str] | None = None) -> int:
    return exit_code(lambda: run(parse(argv)))


if __name__ == "__main__":
    sys.exit(main())
