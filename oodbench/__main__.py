"""The commands in one: `oodbench sweep launch`, `oodbench report table`, `oodbench data list`, ..."""

import typer

from oodbench import list as listing
from oodbench.data import cli as data
from oodbench.diagnose import cli as diagnose
from oodbench.report import cli as report
from oodbench.sweep import cli as sweep
from oodbench.verify import cli as verify

main = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
main.add_typer(sweep.app, name="sweep")
main.add_typer(report.app, name="report")
main.add_typer(data.app, name="data")
main.add_typer(diagnose.app, name="diagnose")
main.add_typer(listing.app, name="list")
main.command("verify")(verify.verify)

if __name__ == "__main__":
    main()
