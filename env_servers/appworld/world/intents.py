"""The self-made tasks: twelve intents, each for three people, seven of them across apps.

An intent gives, for one person, the instruction, code that solves it, two named ways to get it wrong, and the checks
of the end state. The checks see the records before and after, never the agent's words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from env_servers.appworld.world.people import BELONGINGS, GIVERS, person


@dataclass(frozen=True)
class Variant:
    """One task.

    Attributes:
        instruction: What the person asks for.
        solution: Code that does it, after `PRELUDE`.
        wrong: Two ways to fail, by name; code as above.
        checks: Requirement → Python statements that assert it. `added`, `updated` and `removed` give the changed
            records of a model, `test.case(left, "==", right)` compares.
        touches: Models that may change.
        answer: The answer to a question, `None` where nothing is asked.
        difficulty: 1 to 3.
    """

    instruction: str
    solution: str
    wrong: dict[str, str]
    checks: dict[str, str]
    touches: tuple[str, ...] = ()
    answer: Any = None
    difficulty: int = 1


PRELUDE = """
me = apis.supervisor.show_profile()
words = {one["account_name"]: one["password"] for one in apis.supervisor.show_account_passwords()}
note = apis.simple_note.login(username=me["email"], password=words["simple_note"])["access_token"]
todo = apis.todoist.login(username=me["email"], password=words["todoist"])["access_token"]
call = apis.phone.login(username=me["phone_number"], password=words["phone"])["access_token"]
pay = apis.venmo.login(username=me["email"], password=words["venmo"])["access_token"]

def find_note(title):
    found = apis.simple_note.search_notes(access_token=note, query=title, page_limit=20)
    number = next(one["note_id"] for one in found if one["title"] == title)
    return apis.simple_note.show_note(note_id=number, access_token=note)

def project(name):
    found = apis.todoist.show_projects(access_token=todo, page_limit=20)
    return next(one["project_id"] for one in found if one["name"] == name)

def roommates():
    return apis.phone.search_contacts(access_token=call, relationship="roommate", page_limit=20)

def contact(name):
    found = apis.phone.search_contacts(access_token=call, query=name, page_limit=20)
    return next(one for one in found if one["first_name"] == name)

def done(answer=None):
    apis.supervisor.complete_task(answer=answer)
"""


def pin_note(number: int) -> Variant:
    """Pins one note."""
    title = BELONGINGS[number].pinned_title
    pin = "apis.simple_note.update_note(note_id=find_note({!r})['note_id'], pinned=True, access_token=note)\ndone()"
    both = pin.format("Books").replace("done()", "") + pin.format(title)
    return Variant(
        f'Pin my note "{title}" in Simple Note.',
        pin.format(title),
        {"another note": pin.format("Books"), "one more note": both},
        {
            "Only that note's pin has changed.": f"""
test.case([one.title for one in updated("simple_note.Note")], "==", [{title!r}])
test.case([one.pinned for one in updated("simple_note.Note")], "==", [True])
test.case(added("simple_note.Note") + removed("simple_note.Note"), "==", [])
"""
        },
        ("simple_note.Note",),
    )


def count_recipes(number: int) -> Variant:
    """Asks how many notes have a tag."""
    count = len(BELONGINGS[number].recipes)
    find = "found = apis.simple_note.search_notes(access_token=note, tags=['recipe'], page_limit=20)\n"
    return Variant(
        'How many of my notes in Simple Note have the tag "recipe"?',
        find + "done(len(found))",
        {"all notes": find.replace(", tags=['recipe']", "") + "done(len(found))", "no answer": find + "done()"},
        {},
        answer=count,
    )


def finish_project(number: int) -> Variant:
    """Completes what is still open in a project."""
    work = """
found = apis.todoist.show_tasks(project_id=project("Move"), is_completed=False, access_token=todo, page_limit=20)
for task in found["no_section_tasks"]:
    apis.todoist.update_task(task_id=task["task_id"], is_completed=True, access_token=todo)
done()
"""
    titles = sorted(BELONGINGS[number].open_tasks)
    return Variant(
        'Mark every open task of my Todoist project "Move" as completed.',
        work,
        {"nothing but done": "done()",
         "tasks deleted": work.replace("update_task(", "delete_task(").replace("is_completed=True, ", "")},
        {
            "All of its open tasks are completed and nothing else has changed.": f"""
test.case(sorted(one.title for one in updated("todoist.Task")), "==", {titles!r})
test.case(all(one.is_completed for one in updated("todoist.Task")), "==", True)
test.case(added("todoist.Task") + removed("todoist.Task"), "==", [])
"""
        },
        ("todoist.Task",),
    )  # fmt: skip


def move_alarm(number: int) -> Variant:
    """Changes the time of one alarm."""
    label, other = BELONGINGS[number].alarms
    work = """
found = apis.phone.show_alarms(access_token=call, page_limit=20)
alarm = next(one for one in found if one["label"] == {label!r})
apis.phone.update_alarm(alarm_id=alarm["alarm_id"], time={time!r}, access_token=call)
done()
"""
    return Variant(
        f'Move my alarm "{label}" to 08:15.',
        work.format(label=label, time="08:15"),
        {"the other alarm": work.format(label=other, time="08:15"), "evening": work.format(label=label, time="20:15")},
        {
            "That alarm rings at 08:15 and no other has changed.": f"""
test.case([(one.label, one.time) for one in updated("phone.Alarm")], "==", [({label!r}, "08:15")])
test.case(added("phone.Alarm") + removed("phone.Alarm"), "==", [])
"""
        },
        ("phone.Alarm",),
    )


def ask_birthday(number: int) -> Variant:
    """Asks for a contact's birthday."""
    friend, other, _ = BELONGINGS[number].friends
    work = "done(contact({!r})['birthday'])"
    return Variant(
        f"What is the birthday of my contact {friend.first_name}? Answer in the form YYYY-MM-DD.",
        work.format(friend.first_name),
        {"another contact": work.format(other.first_name), "the name instead": f"done({friend.first_name!r})"},
        {},
        answer=friend.birthday,
    )


def pay_debt(number: int) -> Variant:
    """Pays what a note says: Simple Note and Venmo."""
    name, amount = next(iter(BELONGINGS[number].debts.items()))
    work = """
lines = find_note("Money I owe")["content"].splitlines()
amount = float(next(line for line in lines if line.startswith({name!r})).split("$")[1]){change}
apis.venmo.create_transaction(receiver_email={email!r}, amount=amount, description="thanks", access_token=pay)
done()
"""
    email, other = person(name).email, BELONGINGS[number].roommates[0].email
    right = work.format(name=name, email=email, change="")
    return Variant(
        f'My note "Money I owe" says what I owe {name}. Send it on Venmo to {email} with the description "thanks".',
        right,
        {"double the amount": work.format(name=name, email=email, change=" * 2"),
         "to somebody else": work.format(name=name, email=other, change="")},
        {"One transaction of that amount goes to that person.": _transactions([(email, amount, "thanks")])},
        ("venmo.Transaction",),
        difficulty=2,
    )  # fmt: skip


def pay_ticket(number: int) -> Variant:
    """Pays what a text message asks for: phone and Venmo."""
    own = BELONGINGS[number]
    friend = own.friends[0]
    work = """
friend = contact({name!r})
found = apis.phone.search_text_messages(access_token=call, phone_number=friend["phone_number"], page_limit=20)
text = next(one["message"] for one in found if "ticket" in one["message"])
apis.venmo.create_transaction(receiver_email=friend["email"], amount={amount}, description={why!r}, access_token=pay)
done()
"""
    amount = 'float(text.split("$")[1].rstrip("."))'
    return Variant(
        f"{friend.first_name} texted me what I owe for the concert ticket. Pay it on Venmo to the email address in my "
        'contacts, with the description "concert".',
        work.format(name=friend.first_name, amount=amount, why="concert"),
        {"another amount": work.format(name=friend.first_name, amount="1.0", why="concert"),
         "another description": work.format(name=friend.first_name, amount=amount, why="ticket")},
        {"One transaction goes to that person.": _transactions([(friend.email, own.ticket, "concert")])},
        ("venmo.Transaction",),
        difficulty=2,
    )  # fmt: skip


def list_groceries(number: int) -> Variant:
    """Makes a task of each line of a note: Simple Note and Todoist."""
    items = list(BELONGINGS[number].groceries)
    work = """
lines = find_note("Groceries")["content"].splitlines(){part}
for line in lines:
    apis.todoist.create_task(project_id=project({project!r}), title=line[2:], access_token=todo)
done()
"""
    return Variant(
        'Add every item of my note "Groceries" as a task to my Todoist project "Errands", in the order of the note.',
        work.format(part="", project="Errands"),
        {"one left out": work.format(part="[1:]", project="Errands"),
         "another project": work.format(part="", project="Move")},
        {
            "The project has one new task for each item, in order.": f"""
new = sorted(added("todoist.Task"), key=lambda one: one.id)
test.case([one.title for one in new], "==", {items!r})
test.case({{models.end.todoist.Project.by_id(one.project_id).name for one in new}}, "==", {{"Errands"}})
test.case(removed("todoist.Task"), "==", [])
"""
        },
        ("todoist.Task",),
        difficulty=2,
    )  # fmt: skip


def tell_roommates(number: int) -> Variant:
    """Texts a note's content to some contacts: Simple Note and phone."""
    own = BELONGINGS[number]
    work = """
text = find_note("Announcement for roommates")["content"]{change}
for one in {who}:
    apis.phone.send_text_message(phone_number=one["phone_number"], message=text, access_token=call)
done()
"""
    sent = sorted((one.phone_number, own.announcement) for one in own.roommates)
    return Variant(
        'Text the content of my note "Announcement for roommates", word for word, to each of my roommates.',
        work.format(change="", who="roommates()"),
        {"only one of them": work.format(change="", who="roommates()[:1]"),
         "other words": work.format(change=" + '!'", who="roommates()")},
        {
            "Each roommate has received that text, and nobody anything else.": f"""
new = added("phone.GlobalTextMessage")
sent = sorted((models.end.phone.User.by_id(one.receiver_id).phone_number, one.message) for one in new)
test.case(sent, "==", {sent!r})
test.case(removed("phone.GlobalTextMessage"), "==", [])
"""
        },
        ("phone.GlobalTextMessage", "phone.UserTextMessage"),
        difficulty=2,
    )  # fmt: skip


def request_rent(number: int) -> Variant:
    """Requests money of some contacts: phone and Venmo."""
    own = BELONGINGS[number]
    work = """
for one in {who}:
    apis.venmo.create_payment_request(
        user_email=one["email"], amount={amount}, description="rent", access_token=pay)
done()
"""
    friend = own.friends[0].first_name
    asked = sorted((one.email, own.rent, "rent") for one in own.roommates)
    return Variant(
        f'Request ${own.rent:.2f} from each of my roommates on Venmo with the description "rent". Their email '
        "addresses are in my contacts.",
        work.format(who="roommates()", amount=own.rent),
        {"split between them": work.format(who="roommates()", amount=own.rent / 2),
         "a friend as well": work.format(who=f"roommates() + [contact({friend!r})]", amount=own.rent)},
        {
            "There is one new request of that amount to each roommate.": f"""
new = added("venmo.PaymentRequest")
asked = sorted((models.end.venmo.User.by_id(one.receiver_id).email, one.amount, one.description) for one in new)
test.case(asked, "==", {asked!r})
test.case(updated("venmo.PaymentRequest") + removed("venmo.PaymentRequest"), "==", [])
"""
        },
        ("venmo.PaymentRequest",),
        difficulty=2,
    )  # fmt: skip


def note_roommates(number: int) -> Variant:
    """Writes a note with names from the contacts: phone and Simple Note."""
    names = sorted(one.first_name for one in BELONGINGS[number].roommates)
    work = """
names = sorted(one["first_name"] for one in {who})
apis.simple_note.create_note(title={title!r}, content="\\n".join(names), access_token=note)
done()
"""
    return Variant(
        'Create a note "Flat" in Simple Note with the first names of my roommates, one on each line, alphabetically.',
        work.format(who="roommates()", title="Flat"),
        {"another title": work.format(who="roommates()", title="Roommates"),
         "one name missing": work.format(who="roommates()[1:]", title="Flat")},
        {
            "There is one new note with that title and content.": f"""
new = [(one.title, one.content.strip()) for one in added("simple_note.Note")]
test.case(new, "==", [("Flat", {chr(10).join(names)!r})])
test.case(updated("simple_note.Note") + removed("simple_note.Note"), "==", [])
"""
        },
        ("simple_note.Note",),
        difficulty=2,
    )  # fmt: skip


def answer_requests(number: int) -> Variant:
    """Approves a request and notes it: Venmo and Todoist."""
    own = BELONGINGS[number]
    (name, amount), (other, _) = own.asked.items()
    work = """
for one in apis.venmo.show_received_payment_requests(access_token=pay, status="pending", page_limit=20):
    if one["sender"]["email"] == {email!r}:
        apis.venmo.approve_payment_request(payment_request_id=one["payment_request_id"], access_token=pay)
    {deny}
apis.todoist.create_task(project_id=project("Errands"), title={title!r}, access_token=todo)
done()
"""
    title = f"Thank {name}"
    deny = (
        "else:\n        apis.venmo.deny_payment_request("
        'payment_request_id=one["payment_request_id"], access_token=pay)'
    )
    return Variant(
        f"Approve the pending Venmo payment request from {name} ({person(name).email}), leave all others as they are, "
        f'and add the task "{title}" to my Todoist project "Errands".',
        work.format(email=person(name).email, title=title, deny=""),
        {"the others denied": work.format(email=person(name).email, title=title, deny=deny),
         "the wrong one approved": work.format(email=person(other).email, title=title, deny="")},
        {
            "Only that request is approved.": f"""
senders = [models.end.venmo.User.by_id(one.sender_id).email for one in updated("venmo.PaymentRequest")]
test.case(senders, "==", [{person(name).email!r}])
test.case([one.approved_at is None for one in updated("venmo.PaymentRequest")], "==", [False])
test.case(added("venmo.PaymentRequest") + removed("venmo.PaymentRequest"), "==", [])
test.case([one.amount for one in added("venmo.Transaction")], "==", [{amount!r}])
""",
            "The task is in the project.": f"""
new = [(one.title, models.end.todoist.Project.by_id(one.project_id).name) for one in added("todoist.Task")]
test.case(new, "==", [({title!r}, "Errands")])
""",
        },
        ("venmo.PaymentRequest", "venmo.Transaction", "todoist.Task"),
        difficulty=3,
    )  # fmt: skip


def _transactions(wanted: list[tuple[str, float, str]]) -> str:
    return f"""
new = added("venmo.Transaction")
sent = [(models.end.venmo.User.by_id(one.receiver_id).email, one.amount, one.description) for one in new]
test.case(sent, "==", {wanted!r})
test.case(updated("venmo.Transaction") + removed("venmo.Transaction"), "==", [])
"""


# Scenario ids have no underscore: AppWorld's task ids are `<scenario>_<number>` with exactly one.
INTENTS: dict[str, Callable[[int], Variant]] = {
    "pin": pin_note,
    "recipes": count_recipes,
    "move": finish_project,
    "alarm": move_alarm,
    "birthday": ask_birthday,
    "debt": pay_debt,
    "ticket": pay_ticket,
    "groceries": list_groceries,
    "announce": tell_roommates,
    "rent": request_rent,
    "flat": note_roommates,
    "approve": answer_requests,
}
SPLITS = {"train": tuple(INTENTS)[:8], "dev": tuple(INTENTS)[8:]}


def variants() -> dict[str, Variant]:
    """Returns every task by its id."""
    return {
        f"{scenario}_{number + 1}": intent(number)
        for scenario, intent in INTENTS.items()
        for number in range(len(GIVERS))
    }
