"""The commands in one: `oodbench sweep launch`, `oodbench report table`, `oodbench data list`, ..."""

import typer

from oodbench import list as listing
from oodbench.data.cli import app as data
from oodbench.diagnose.cli import app as diagnose
from oodbench.report.cli import app as report
from oodbench.sweep.cli import app as sweep
from oodbench.verify.cli import verify

main = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
main.add_typer(sweep, name="sweep")
main.add_typer(report, name="report")
main.add_typer(data, name="data")
main.add_typer(diagnose, name="diagnose")
main.add_typer(listing.app, name="list")
main.command("verify")(verify)

if __name__ == "__main__":
    main()
