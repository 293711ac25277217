"""What the site generates from the code: the command line, and the options of a training run.

A page holds `<!-- generated: NAME -->`, and mkdocs puts the text there. Neither needs torch: commands come from Typer,
and options are read from the source of their dataclasses. Pages that the navigation forgets stand at its end.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer import Context
from typer.cli import get_docs_for_click
from typer.main import get_command

from cope_gym.cli import build

ROOT = Path(__file__).resolve().parents[1]
OPTION_FILES = ("cope_train/config.py", "cope_train/objective_config.py", "cope_train/skills/config.py")


@dataclass(frozen=True)
class Option:
    """One field of a configuration dataclass.

    Attributes:
        section: The comment above its group, or the class's purpose.
        name: Key in YAML.
        type: Annotation as in the source.
        default: As in the source.
        help: What it does.
    """

    section: str
    name: str
    type: str
    default: str
    help: str


def on_config(config: Any) -> Any:
    """Adds forgotten pages to the navigation (a hook of mkdocs)."""
    docs = Path(config.docs_dir)
    listed = set(re.findall(r"[\w/-]+\.md", str(config.nav)))
    pages = sorted(str(page.relative_to(docs)) for page in docs.rglob("*.md"))
    forgotten = [page for page in pages if page not in listed]
    if forgotten:
        config.nav = [*config.nav, {"More": forgotten}]
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces the markers of a page (a hook of mkdocs)."""
    return re.sub(r"<!-- generated: (\w+) -->", lambda match: GENERATED[match[1]](), markdown)


def commands() -> str:
    """Describes every command, as `cope COMMAND --help` does."""
    command = get_command(build())
    text = get_docs_for_click(obj=command, ctx=Context(command, info_name="cope"), name="cope")
    return text.removeprefix("# `cope`\n\n")


def options() -> list[Option]:
    """Reads all options that this project adds to TRL's."""
    return [option for path in OPTION_FILES for option in _options((ROOT / path).read_text(encoding="utf-8"))]


def option_tables() -> str:
    """Describes them, one table a group."""
    lines: list[str] = []
    section = ""
    for option in options():
        if option.section != section:
            section = option.section
            lines += ["", f"## {section}", "", "| option | type | default | meaning |", "|---|---|---|---|"]
        kind = option.type.replace("|", "\\|")
        lines.append(f"| `{option.name}` | `{kind}` | `{option.default}` | {option.help} |")
    return "\n".join(lines)


def _options(source: str) -> Iterator[Option]:
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.name.endswith("Config"):
            section = (ast.get_docstring(node) or "").split(".")[0]
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and _is_knob(field.value):
                    above = lines[field.lineno - 2].strip()
                    section = above.removeprefix("# ") if above.startswith("# ") else section
                    yield _option(section, field)


def _is_knob(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "knob"


def _option(section: str, field: ast.AnnAssign) -> Option:
    assert isinstance(field.target, ast.Name) and isinstance(field.value, ast.Call)
    default, help = field.value.args
    value = ast.literal_eval(default)
    shown = "–" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return Option(section, field.target.id, ast.unparse(field.annotation), shown, ast.literal_eval(help))


GENERATED = {"commands": commands, "options": option_tables}
