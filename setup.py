"""What pyproject.toml cannot say: a wheel has the app's files, which lie at the top of a clone, inside the package."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

_TOP = ("app.py", "pages", "assets", ".streamlit/config.toml")


class BuildWithApp(build_py):
    """Puts them into ``senseapp/site``, where ``senseapp/core/files.py`` looks; an editable install needs none."""

    def run(self) -> None:
        """Build the package, then copy what lies beside it."""
        super().run()
        if self.editable_mode:
            return
        site = Path(self.build_lib) / "senseapp" / "site"
        shutil.rmtree(site, ignore_errors=True)  # of an earlier build
        for name in _TOP:
            target = site / name
            if Path(name).is_dir():
                shutil.copytree(name, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(name, target)


setup(cmdclass={"build_py": BuildWithApp})
