"""Write the raw files of a small shop: an event log in daily parts, and a catalogue.

    python -m examples.make_shop shop

The parts are shop/events/dt=2026-03-01/part-0.csv ... with user_id, sku, kind and ts, and
shop/catalogue.csv has sku, title, category, tags, price and in_stock. Customers like one or two
categories; the last products of the catalogue have no events yet.
"""

from __future__ import annotations

import csv
import sys
from datetime import date, timedelta
from pathlib import Path

import numpy as np

CATEGORIES = {
    "shoes": ("running", "leather", "trail", "canvas"),
    "bags": ("travel", "leather", "city", "canvas"),
    "jackets": ("rain", "winter", "running", "city"),
    "hats": ("sun", "winter", "wool", "city"),
}
COLOURS = ("red", "blue", "green", "black", "white")
DAYS, USERS, ITEMS, NEW_ITEMS, EVENTS = 10, 400, 160, 12, 12_000


def main(folder: Path) -> None:
    rng = np.random.default_rng(0)
    names = list(CATEGORIES)
    products = []
    for n in range(ITEMS + NEW_ITEMS):
        category = names[n % len(names)]
        tags = rng.choice(CATEGORIES[category], 2, replace=False)
        title = f"{rng.choice(COLOURS).capitalize()} {tags[0]} {category}"
        price, in_stock = round(float(rng.lognormal(3.5, 0.5)), 2), rng.random() < 0.8
        products.append((f"{n:05}", title, category, "|".join(tags), price, str(in_stock).lower()))
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "catalogue.csv").open("w", newline="", encoding="utf-8") as file:
        header = ("sku", "title", "category", "tags", "price", "in_stock")
        csv.writer(file).writerows([header, *products])

    taste = rng.dirichlet([0.3] * len(names), USERS)  # of each user over the categories
    wanted = rng.zipf(1.6, ITEMS).clip(max=50) + 2.0
    for day in range(DAYS):
        rows = []
        for second in np.sort(rng.integers(0, 86_400, EVENTS // DAYS)):
            user = int(rng.integers(USERS))
            chance = wanted * taste[user][np.arange(ITEMS) % len(names)]
            sku = products[rng.choice(ITEMS, p=chance / chance.sum())][0]
            moment = 1_772_323_200 + 86_400 * day + int(second)  # from 2026-03-01
            rows.append((f"u{user:04}", sku, rng.choice(["view", "view", "purchase"]), moment))
        part = folder / "events" / f"dt={date(2026, 3, 1) + timedelta(day)}" / "part-0.csv"
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("user_id", "sku", "kind", "ts"), *rows])
    print(f"wrote {folder}: {DAYS} days of events, {len(products)} products")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "shop"))
