"""Builds the self-made world. Runs in AppWorld's interpreter, once.

What is made (databases, API documents) derives from AppWorld's protected bundles, so it is built where it is used and
never stored in a repository.
"""

# appworld is untyped, and in the benchmark's environment only.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import json
import os
import re
from datetime import datetime
from pathlib import Path
from typing import Any

from env_servers.appworld.world import intents
from env_servers.appworld.world.people import APPS, BELONGINGS, GIVERS, NOW, PASSWORD, PEOPLE, messages, notes

_EVALUATION = """
def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
    import json

    def added(name):
        return list(models.changed_records(name)[0])

    def updated(name):
        return list(models.changed_records(name)[1])

    def removed(name):
        return list(models.changed_records(name)[2])

    with test("The task is marked as completed, with the right answer if one was asked for."):
        task = models.end.supervisor.Task.first()
        test.case(task.status, "==", "success")
        test.answer(json.loads(task.answer), ground_truth_answer)
    with test("Nothing else has changed."):
        # Logging in and being notified are no changes.
        quiet = {"User", "Notification"}
        changed = {name for name in models.changed_model_names() if name.split(".")[1] not in quiet}
        test.case(sorted(changed - set(TOUCHES)), "==", [])
"""


def build(root: Path) -> None:
    """Makes the whole data root in an empty folder."""
    root = root.resolve()
    os.environ["APPWORLD_ROOT"] = str(root)
    from appworld.apps import get_all_apps
    from appworld.apps.api_lib import set_local_date_and_time
    from appworld.apps.model_lib import CachedDBHandler
    from appworld.collections.models import ModelCollection

    freezer = set_local_date_and_time(datetime.fromisoformat(NOW))
    base = root / "data" / "base_dbs"
    base.mkdir(parents=True)
    models: Any = ModelCollection.load(to_db_home_path=str(base), force_empty_apps=get_all_apps(), create_db=True)
    _people(models)
    for number in range(len(GIVERS)):
        _belongings(models, number)
    _documents(models, root)
    models.close()
    for task_id, variant in intents.variants().items():
        _task(root, task_id, variant)
        CachedDBHandler.reset()
    datasets = root / "data" / "datasets"
    datasets.mkdir()
    for split, scenarios in intents.SPLITS.items():
        ids = [f"{scenario}_{number + 1}" for scenario in scenarios for number in range(len(GIVERS))]
        (datasets / f"{split}.txt").write_text("\n".join(ids) + "\n")
    (root / "data" / "version.txt").write_text("self-made\n")
    freezer.stop()


def _people(models: Any) -> None:
    for one in PEOPLE:
        name = {"first_name": one.first_name, "last_name": one.last_name}
        models.admin.MainUser.create_save(
            **name, email=one.email, phone_number=one.phone_number, birthday=one.birthday
        )
        account = {**name, "password": PASSWORD}
        models.phone.User.create_save(**account, phone_number=one.phone_number)
        models.venmo.User.create_save(**account, email=one.email, verified=True, venmo_balance=500.0)
        for app in ("simple_note", "todoist"):
            models[app].User.create_save(**account, email=one.email, verified=True)


def _belongings(models: Any, number: int) -> None:
    own, giver = BELONGINGS[number], number + 1
    for written in notes(number):
        models.simple_note.Note.create_save(user_id=giver, pinned=False, **written)
    _projects(models, number)
    for label, time in own.alarms.items():
        models.phone.Alarm.create_save(user_id=giver, time=time, label=label, enabled=True, snooze_minutes=5)
    for group, people in (("roommate", own.roommates), ("friend", own.friends)):
        for one in people:
            models.phone.Contact.create_save(
                user_id=giver,
                first_name=one.first_name,
                last_name=one.last_name,
                email=one.email,
                phone_number=one.phone_number,
                relationships=[group],
                birthday=one.birthday,
            )
    for sender, text in messages(number):
        sender_id = PEOPLE.index(sender) + 1
        sent = models.phone.GlobalTextMessage.create_save(sender_id=sender_id, receiver_id=giver, message=text)
        for owner in (sender_id, giver):
            models.phone.UserTextMessage.create_save(global_text_message_id=sent.id, user_id=owner)
    for name, amount in own.asked.items():
        sender_id = next(index + 1 for index, one in enumerate(PEOPLE) if one.first_name == name)
        models.venmo.PaymentRequest.create_save(sender_id=sender_id, receiver_id=giver, amount=amount, description="")


def _projects(models: Any, number: int) -> None:
    own, giver = BELONGINGS[number], number + 1
    for name, color in (("Inbox", "charcoal"), ("Move", "blue"), ("Errands", "green")):
        project = models.todoist.Project.create_save(user_id=giver, name=name, color=color, is_inbox=name == "Inbox")
        models.todoist.ProjectCollaboratorLink.create_save(project_id=project.id, user_id=giver)
        move = [(title, False) for title in own.open_tasks] + [(title, True) for title in own.done_tasks]
        titles = {"Move": move, "Errands": [("Buy stamps", False)]}.get(name, [])
        for order, (title, done) in enumerate(titles):
            models.todoist.Task.create_save(
                project_id=project.id,
                user_id=giver,
                title=title,
                is_completed=done,
                order_index=order,
                priority="medium",
            )


def _documents(models: Any, root: Path) -> None:
    from appworld.api_docs import prepare_api_docs
    from appworld.apps import get_all_apps

    folder = root / "data" / "api_docs" / "standard"
    folder.mkdir(parents=True)
    for app in get_all_apps(skip_admin=True):
        documents: list[dict[str, Any]] = prepare_api_docs(app)
        for document in documents:
            fields = {key: value for key, value in document.items() if key != "canary_string"}
            models.api_docs.ApiDoc.create_save(app_name_=fields.pop("app_name"), **fields)
        by_name = {document["api_name"]: {"canary_string": "", **document} for document in documents}
        (folder / f"{app}.json").write_text(json.dumps(by_name))


def _task(root: Path, task_id: str, variant: intents.Variant) -> None:
    from appworld.apps import get_all_apps
    from appworld.apps.model_lib import get_db_home_path
    from appworld.collections.models import ModelCollection

    giver = GIVERS[int(task_id.split("_")[1]) - 1]
    folder = root / "data" / "tasks" / task_id
    truth = folder / "ground_truth"
    truth.mkdir(parents=True)
    known = {
        "first_name": giver.first_name,
        "last_name": giver.last_name,
        "email": giver.email,
        "phone_number": giver.phone_number,
    }
    specs = {"instruction": variant.instruction, "supervisor": known, "datetime": NOW, "db_version": "0.1.0"}
    (folder / "specs.json").write_text(json.dumps(specs))
    models: Any = ModelCollection.load(
        from_db_home_path=str(root / "data" / "base_dbs"),
        to_db_home_path=get_db_home_path(storage_type="memory", type="task_input", task_id=task_id),
        load_apps=["supervisor", "admin"],
    )
    models.start_db_tracker()
    supervisor = models.supervisor.Supervisor.create_save(**known, birthday=giver.birthday)
    for app in APPS:
        models.supervisor.AccountPassword.create_save(supervisor_id=supervisor.id, account_name=app, password=PASSWORD)
    models.supervisor.Task.create_save(supervisor_id=supervisor.id, instruction=variant.instruction)
    models.save(db_home_path=str(folder / "dbs"), format="changes", delete_if_exists=True)
    models.close()
    for app in get_all_apps():
        # Whatever else a task is about stands in the base databases already.
        (folder / "dbs" / f"{app}.jsonl").touch()
    _ground_truth(truth, variant)


def _ground_truth(folder: Path, variant: intents.Variant) -> None:
    code = f"TOUCHES = {list(variant.touches)!r}\n{_EVALUATION}"
    for requirement, statements in variant.checks.items():
        body = "\n".join(f"        {line}" for line in statements.strip().splitlines())
        code += f"    with test({requirement!r}):\n{body}\n"
    labels = {"The task is marked as completed, with the right answer if one was asked for.": "no_op_fail"}
    labels["Nothing else has changed."] = "no_op_pass"
    labels.update(dict.fromkeys(variant.checks, "no_op_fail"))
    data = [{"requirement": requirement, "label": label} for requirement, label in labels.items()]
    used = set(re.findall(r"apis\.(\w+)\.(\w+)", variant.solution))
    metadata = {
        "difficulty": variant.difficulty,
        "mode": "minimal",
        "num_apps": len({app for app, _ in used}),
        "num_apis": len(used),
        "num_api_calls": len(used),
        "num_solution_code_lines": len(variant.solution.strip().splitlines()),
    }
    (folder / "evaluation.py").write_text(code)
    (folder / "solution.txt").write_text(intents.PRELUDE + variant.solution)
    for name, content in {
        "metadata": metadata,
        "public_data": {},
        "private_data": {},
        "answer": variant.answer,
        "test_data": data,
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
