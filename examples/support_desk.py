"""The desk behind `support_agent.py`: policy, tool schemas, solved tickets, and 40 open ones. Invented for this project."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

POLICY = """\
You are Lark, the first reader at the help desk of Fern & Fell, a shop that rents and sells camping gear, bicycles and \
rain clothes in nine countries. You see one ticket at a time. For each ticket you choose exactly one tool that a \
colleague should run next, judge how urgent the ticket is, sum it up in one line, and draft a short reply.

How the desk works:
1. Read the whole ticket first. If it holds two requests, deal with the one that costs the customer more if it waits.
2. Replies are one or two sentences, friendly and plain. Never promise a date that the depot has not confirmed.
3. Do not make up booking numbers, prices or serial numbers. If one is missing, ask for it or search by e-mail address.
4. Rental gear that breaks during a trip is replaced at the nearest depot at no cost, whoever broke it. We sort out the \
blame later and without a quarrel.
5. Bought goods can be returned within thirty days, clean and complete. Customers pay for the parcel, unless we sent the \
wrong thing or it arrived damaged; then we send a label.
6. A deposit is released within three working days after the gear is back. If it takes longer, look up the booking \
before you answer.
7. A stove, a lamp battery or a brake that failed is a safety matter: urgency five, a person answers, and the customer is \
asked to stop using it at once.
8. Bookings can be moved free of charge until two days before the start. After that the first day is charged.
9. Never mention other customers, purchase prices, or the name of a colleague who is not on the ticket.
10. If someone writes for the third time about the same thing, say so in the summary and raise the urgency by one.
11. Discounts are given only for clubs, schools and mountain rescue teams. Ask for a letter from the organisation.
12. Write dates as 3 May 2026 and amounts as EUR 18.50. Use the language of the customer where you know it.

Urgency: 1 can wait a week, 2 this week, 3 tomorrow, 4 today, 5 now. Mark a ticket for a person when somebody is hurt, \
when a lawyer or a newspaper is mentioned, when safety gear failed, or when the customer asks for a person.
"""

_TOOLS: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {
    "find_booking": (
        "Look up one rental booking by its number: dates, depot, items, deposit, payment and every change so far.",
        {
            "booking": ("string", "The booking number on the voucher, for example FF-20417."),
            "with_history": ("boolean", "Also return each change together with its date and author."),
        },
    ),
    "find_customer": (
        "Search bookings and orders of a customer by e-mail address, newest first, when no number is known.",
        {
            "email": ("string", "The address the customer writes from."),
            "kind": ("string", "One of rental, purchase, both."),
            "limit": ("integer", "How many entries to return, between one and twenty."),
        },
    ),
    "move_booking": (
        "Move a rental booking to other dates or to another depot. Fails when the gear is not free on those days.",
        {
            "booking": ("string", "The booking to move."),
            "start": ("string", "New first day as an ISO date."),
            "end": ("string", "New last day as an ISO date."),
            "depot": ("string", "Optional: the depot where the gear is collected."),
        },
    ),
    "replace_gear": (
        "Reserve replacement gear at the depot nearest to the customer while a rental is running.",
        {
            "booking": ("string", "The running booking."),
            "item": ("string", "What has to be replaced."),
            "place": ("string", "Town or coordinates where the customer is now."),
        },
    ),
    "release_deposit": (
        "Pay a deposit back, whole or in part, to the card it came from. Needs the inspection to be finished.",
        {
            "booking": ("string", "The booking the deposit belongs to."),
            "amount_cents": ("integer", "The amount in cents."),
            "reason": ("string", "One of returned, partly_damaged, goodwill."),
        },
    ),
    "refund_order": (
        "Return the price of a purchase, or of some of its items, to the customer's payment method.",
        {
            "order": ("string", "The order number on the receipt, for example P-88102."),
            "amount_cents": ("integer", "The amount in cents."),
            "reason": ("string", "One of wrong_item, damaged, lost, changed_mind, billed_twice."),
        },
    ),
    "send_label": (
        "Mail a prepaid parcel label for a return. It is valid for three weeks.",
        {
            "order": ("string", "The order that comes back."),
            "parcels": ("integer", "How many labels are needed."),
        },
    ),
    "check_depot": (
        "Tell what a depot has on its shelves, its opening hours, and which gear is being serviced.",
        {
            "depot": ("string", "One of graz, lyon, bergen, leeds, turin."),
            "item": ("string", "Optional: only this kind of item."),
        },
    ),
    "search_manuals": (
        "Search the manuals and care sheets of everything we sell and rent. Returns the best paragraphs.",
        {
            "query": ("string", "A few words."),
            "language": ("string", "Two letter code of the language to answer in."),
        },
    ),
    "hand_to_person": (
        "Give the ticket to a colleague on shift. For injuries, failed safety gear, legal matters, the press, or on request.",
        {
            "team": ("string", "One of safety, billing, depot, legal."),
            "note": ("string", "Two sentences that bring the colleague up to date."),
            "urgency": ("integer", "From one, can wait, to five, now."),
        },
    ),
}

_SOLVED: list[tuple[str, str, int, str, str, bool]] = [
    (
        "The zip of our rented tent tore on the second night, we are near Briancon until Friday. Booking FF-20417.",
        "replace_gear",
        4,
        "Rented tent with torn zip near Briancon, trip until Friday.",
        "I am sorry about the zip. I am reserving another tent at the depot closest to you and will write where to swap it.",
        False,
    ),
    (
        "Hallo, wie wasche ich die Regenjacke, ohne dass sie ihre Beschichtung verliert?",
        "search_manuals",
        1,
        "Asks how to wash a rain jacket without harming the coating.",
        "Gute Frage! Ich suche die Pflegehinweise fuer Ihre Jacke heraus und schicke sie Ihnen.",
        False,
    ),
    (
        "Gas was hissing out of the stove although the valve was closed. My son burned two fingers. We threw it outside.",
        "hand_to_person",
        5,
        "Stove leaked gas with the valve closed, child has burned fingers.",
        "Please do not use the stove again, and see a doctor about the burn. A colleague is calling you right away.",
        True,
    ),
    (
        "We brought the bikes back nine days ago and the deposit of EUR 300.00 is still missing. Booking FF-19880.",
        "find_booking",
        3,
        "Deposit of booking FF-19880 not released after nine days.",
        "Nine days is longer than it should take. I am looking at booking FF-19880 now and will tell you what holds it up.",
        False,
    ),
    (
        "Can we start our canoe rental on 12 June instead of 10 June? It is FF-21002 and nothing else changes.",
        "move_booking",
        2,
        "Wants to move booking FF-21002 from 10 June to 12 June.",
        "That should be easy. I am asking for the new dates and will confirm as soon as the canoe is free.",
        False,
    ),
    (
        "You sent trekking poles for children. I ordered the ones for adults, P-88102. How do I send them back?",
        "send_label",
        3,
        "Wrong poles in order P-88102, needs a way to return them.",
        "That was our mistake. I am mailing you a prepaid label, and the right poles go out as soon as the parcel is scanned.",
        False,
    ),
    (
        "I lost the voucher with the number. I booked two sleeping bags for Norway under kari.n@example.org.",
        "find_customer",
        2,
        "Booking number lost, two sleeping bags, e-mail address given.",
        "No problem, your e-mail address is enough. I am searching for the booking and will send the voucher again.",
        False,
    ),
    (
        "Third mail about this! The tent came back cleaned, inspected, everything fine, they said. Where is my deposit? FF-18733",
        "release_deposit",
        4,
        "Third message: inspected tent, deposit of FF-18733 still open.",
        "You should not have to write three times, I am sorry. I am releasing the deposit of FF-18733 now.",
        False,
    ),
    (
        "The brake of the rented bike did not grip on the way down. Nothing happened, but I do not dare to ride it.",
        "hand_to_person",
        5,
        "Brake of a rented bike failed on a descent, nobody hurt.",
        "Please do not ride it any further. A colleague from the safety team is calling you now about a replacement.",
        True,
    ),
    (
        "Do you give a discount for our scout group? We are twenty two children and need six tents in August.",
        "hand_to_person",
        2,
        "Scout group of 22 asks for a discount on six tents in August.",
        "How nice! Please send us a letter from your scout group, and a colleague will make you an offer.",
        True,
    ),
]

_WRITERS = (
    "Aino",
    "Bram",
    "Chiara",
    "Dilan",
    "Emeka",
    "Freya",
    "Goran",
    "Hana",
    "Imre",
    "Jelena",
    "Kofi",
    "Lotte",
    "Mateo",
    "Nuria",
    "Otto",
    "Paloma",
    "Quentin",
    "Rosa",
    "Sven",
    "Tessa",
)

_REQUESTS = (
    "The air mattress from booking {b} loses its air in an hour. We are on the coast near Stavanger for five more days. What can we do?",
    "I ordered blue rain trousers in size M with {p}, and black ones in size S came. I need the right ones before my trip.",
    "Please move booking {b} by one week. My daughter broke her arm and we cannot leave on Saturday.",
    "The head lamp I bought in spring gets so hot that the plastic smells. Is that normal? The receipt says {p}.",
    "I paid the deposit for {b} with a card that is blocked now. Where will the money go when we bring the canoe back?",
    "Could you tell me whether the depot in Turin has a roof box for a small car, and when it closes on Friday?",
    "How tight should the chain of the touring bike be? It jumps over the teeth when I climb. I do not want to break anything.",
    "The parcel with order {p} is said to be delivered, but the neighbours have nothing and the driver does not answer.",
    "I cannot find my booking number. It was two kayaks in July, and my address is {m}. Please send the voucher again.",
    "I was charged for a lost tent peg, EUR 45.00, on booking {b}. All pegs were in the bag, I have a photo of it.",
)


def preamble(session: int = 0) -> str:
    """The shared system prompt, about 3,000 tokens: policy, tool schemas, solved tickets.

    `session` changes one number in its first line, so that another session shares nothing with this one.
    """
    tools = "\n".join(json.dumps(tool_schema(name), ensure_ascii=False) for name in _TOOLS)
    solved = "\n\n".join(
        f"Ticket: {ticket}\nAnswer: " + json.dumps(_answer(tool, urgency, summary, reply, person), ensure_ascii=False)
        for ticket, tool, urgency, summary, reply, person in _SOLVED
    )
    return (
        f"Desk session {session % 10}.\n{POLICY}\nThe tools, as JSON schemas:\n{tools}\n\n"
        "Answer with one JSON object with the fields tool, urgency, summary, reply and needs_person. "
        f"These tickets were answered well:\n\n{solved}\n\nAnswer the next ticket in the same way."
    )


def tool_schema(name: str) -> dict[str, object]:
    """One tool in the usual function-calling form."""
    description, parameters = _TOOLS[name]
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": kind, "description": text} for key, (kind, text) in parameters.items()},
                "required": [next(iter(parameters))],
            },
        },
    }


def tickets(count: int = 40) -> list[str]:
    """`count` open tickets, each different, about 50 tokens long."""
    return [_ticket(i) for i in range(count)]


def _ticket(i: int) -> str:
    writer = _WRITERS[i % len(_WRITERS)]
    request = _REQUESTS[(i * 3 + i // 10) % len(_REQUESTS)]
    filled = request.format(b=f"FF-{21100 + 137 * i}", p=f"P-{90100 + 211 * i}", m=f"{writer.lower()}@example.org")
    return f"{writer} writes: {filled}"


def _answer(tool: str, urgency: int, summary: str, reply: str, needs_person: bool) -> dict[str, object]:
    return {"tool": tool, "urgency": urgency, "summary": summary, "reply": reply, "needs_person": needs_person}


Tool = StrEnum("Tool", {name: name for name in _TOOLS})  # type: ignore[misc]  # the names are data


class Answer(BaseModel):
    """What the desk wants for every ticket."""

    model_config = ConfigDict(extra="forbid")

    tool: Tool
    urgency: Annotated[int, Field(ge=1, le=5)]
    summary: Annotated[str, Field(max_length=80)]
    reply: Annotated[str, Field(max_length=160)]
    needs_person: bool
